/// CRC-32C of a transferred file.
///
/// It finds our own mistakes and cut transfers. It proves nothing about a hostile guest, whose
/// files are whatever it says they are.
#[derive(Debug, Clone, Copy)]
pub struct Crc32c(u32);

const TABLE: [u32; 256] = {
    let mut table = [0_u32; 256];
    let mut index = 0;
    while index < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 {
                (value >> 1) ^ 0x82f6_3b78
            } else {
                value >> 1
            };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
};

impl Crc32c {
    /// Returns the checksum of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self(!0)
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |crc, byte| {
            (crc >> 8) ^ TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)]
        });
    }

    /// Returns the checksum of all bytes added.
    #[must_use]
    pub fn value(self) -> u32 {
        !self.0
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}
