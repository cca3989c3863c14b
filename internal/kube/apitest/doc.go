// SPDX-License-Identifier: Apache-2.0

// Package apitest is a Kubernetes API server for tests: a real HTTP/2 server over
// TLS, on a loopback port or on pipes in memory, that serves the part of the API
// which a Reflector of client-go and a discovery client use.
//
// # What it serves
//
// Services, EndpointSlices, ServiceCIDRs, IPAddresses, Nodes and Pods, and
// ServiceImports while their CRD is installed. Reading only: list (with pages and
// all the meanings of resourceVersion), watch (bookmarks, streaming lists of
// KEP-3157), get; label and field selectors; protobuf and JSON; gzip; aggregated
// discovery with its older form. Objects are written through methods, at once and
// without admission: what a test writes is what clients read.
//
// Which APIs exist, and what they know, follows the minor version it plays.
//
// # What can be done to it
//
// It can go away and come back, lose its history (Compact), start anew (Restart),
// start with the content of an older backup (Restore), answer with errors, cut,
// stall, expire or slow its streams, and fall silent at the level of connections.
//
// # Invariants
//
//   - One resourceVersion counts all writes, as in etcd, and only Restore takes it
//     back.
//   - A watch tells every change that its selectors let through, in order and
//     once, or ends. Only a watch from a version that is still to come is silent
//     about what happens until then; real API servers do that too.
//   - What a stored object is made of is never modified again.
//   - After Close no goroutine of the server is left.
//
// # Time
//
// With Options.InMemory nothing but channels and timers is waited for, so server
// and clients can live in a bubble of testing/synctest.
//
// It is a test's tool and no part of any program.
package apitest
