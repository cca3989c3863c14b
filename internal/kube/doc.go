// SPDX-License-Identifier: Apache-2.0

// Package kube is the Kubernetes API as a source of truth: it watches what the
// node needs to know and tells it as changes of the model.
//
// One reflector of client-go per kind lists and watches; restarts, streaming
// lists, bookmarks, resource versions that are too old and back-off are its
// business. Each writes into a store of ours, which converts an object when it
// comes, with package convert, and drops it: what stays in memory is the model's
// form, shared with the State.
//
// Invariants:
//   - A list that comes again is told as its difference from what was told. An
//     API server that is away, restarts or forgot its history never makes the
//     node forget anything: only an object that a complete list lacks, or whose
//     deletion was seen, is told as gone.
//   - A batch is a whole: what one list changes is never told in parts.
//   - Synced is told once Services, EndpointSlices, the own Node and, where they
//     are served, ServiceCIDRs have been listed, never before.
//   - A kind that the API server does not serve is looked for again and again; it
//     may come, and leave, at any time. It has left when two looks, apart, say so.
//   - Whether what was told may be out of date is known at any time: Freshness.
//
// Beside the watches, Looker looks at single addresses when it is asked to.
//
// It decides nothing about traffic, and links no typed clientset, informer or
// lister.
package kube
