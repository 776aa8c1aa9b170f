//! Content-addressed chunks in sealed packs: what snapshots and volumes are stored as.
