//! QEMU's `microvm` machine.
