//! The file operations of a store, in one place: each is a step at which tests let it crash.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Does what a store does to files.
#[derive(Debug, Default)]
pub(super) struct Disk {
    #[cfg(test)]
    pub(super) faults: faults::Faults,
}

impl Disk {
    /// Makes a new file that only its owner may read.
    pub(super) fn create(&self, path: &Path) -> io::Result<File> {
        self.step("create", path)?;
        OpenOptions::new()
            .write(true)
            .read(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
    }

    pub(super) fn write(&self, file: &mut File, path: &Path, bytes: &[u8]) -> io::Result<()> {
        if let Err(crash) = self.step("write", path) {
            // A crash in mid-write leaves a part.
            file.write_all(&bytes[..bytes.len() / 2])?;
            return Err(crash);
        }
        file.write_all(bytes)
    }

    pub(super) fn sync(&self, file: &File, path: &Path) -> io::Result<()> {
        self.step("sync", path)?;
        // Tests look at the order of steps; waiting for the disk at each costs them minutes.
        if cfg!(test) { Ok(()) } else { file.sync_data() }
    }

    pub(super) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step("rename", from)?;
        fs::rename(from, to)
    }

    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        self.step("remove", path)?;
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    pub(super) fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.step("sync dir", dir)?;
        let dir = File::open(dir)?;
        if cfg!(test) { Ok(()) } else { dir.sync_all() }
    }

    #[cfg(not(test))]
    #[expect(
        clippy::unused_self,
        clippy::unnecessary_wraps,
        reason = "tests let it fail"
    )]
    fn step(&self, _what: &'static str, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    #[cfg(test)]
    fn step(&self, what: &'static str, path: &Path) -> io::Result<()> {
        self.faults.step(what, path)
    }
}

#[cfg(test)]
pub(super) mod faults {
    use std::{
        io,
        path::{Path, PathBuf},
        sync::Mutex,
    };

    /// A power switch that turns off at a chosen step, and the steps so far.
    #[derive(Debug, Default)]
    pub(in super::super) struct Faults(Mutex<State>);

    #[derive(Debug, Default)]
    struct State {
        left: Option<usize>,
        log: Vec<(&'static str, PathBuf)>,
    }

    impl Faults {
        /// Lets `steps` more succeed and none after them.
        pub(in super::super) fn crash_after(&self, steps: usize) {
            self.0.lock().unwrap().left = Some(steps);
        }

        pub(in super::super) fn log(&self) -> Vec<(&'static str, PathBuf)> {
            self.0.lock().unwrap().log.clone()
        }

        pub(super) fn step(&self, what: &'static str, path: &Path) -> io::Result<()> {
            let mut state = self.0.lock().unwrap();
            if state.left == Some(0) {
                return Err(io::Error::other("the power is off"));
            }
            state.left = state.left.map(|left| left - 1);
            state.log.push((what, path.to_owned()));
            Ok(())
        }
    }
}
