//! Every parser of foreign bytes in this crate, against its corpus and seeded mutations of it.

use std::path::Path;

#[path = "../../fuzz/drive.rs"]
mod drive;

#[test]
fn no_input_breaks_a_promise() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    drive::run(rhizome_node::fuzz::TARGETS, &corpus);
}
