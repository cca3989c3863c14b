// SPDX-License-Identifier: Apache-2.0

// Package echo holds the two programs that need no image in a sandbox: a server
// that answers in several ways (image aether/echo) and a client that says
// exactly how each connection went (image aether/client). Tests and benchmarks
// use the client as a library, too.
//
// The client tells a reset from a close from silence: a verdict is what the
// kernel reported, never a guess. Nothing here knows about the mesh.
package echo
