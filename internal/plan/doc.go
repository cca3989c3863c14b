// SPDX-License-Identifier: Apache-2.0

// Package plan makes every decision of the node: what class a dialled address
// is of, what answer its name gets, which endpoints are used and why each of the
// others is not, and what the capture listener must tell apart.
//
// Where to look: the class of an address is told in decide.go, a not-ready
// endpoint is dropped in choose.go, the sentences people read are in why.go, and
// what must be decided anew after a change is in rebuild.go, and what a look at an
// unknown address changes is in look.go.
//
// Everything is a pure function of a model.State and Settings. An Answer always
// carries its reasons; a refusal is a value, not an error. plan has no
// goroutines, clocks, I/O or logs and knows neither Envoy nor Kubernetes types.
// Pods are no part of a decision: every captured pod of a node gets the same
// answer.
package plan
