"""Where the tests find their node; node/tests/daemon/clients.rs starts one and says so."""
from __future__ import annotations

import os
import unittest

URL = os.environ.get("RHIZOME_TEST_URL")
TOKEN = os.environ.get("RHIZOME_TEST_TOKEN")
SOCKET = os.environ.get("RHIZOME_TEST_SOCKET")
SANDBOXES = os.environ.get("RHIZOME_TEST_SANDBOXES") == "1"

needs_node = unittest.skipUnless(URL and TOKEN and SOCKET, "no daemon: run `cargo test --test daemon clients`")
needs_sandboxes = unittest.skipUnless(SANDBOXES, "no sandboxes")
