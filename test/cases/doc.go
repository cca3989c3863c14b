// SPDX-License-Identifier: Apache-2.0

// Package cases holds what has gone wrong for others who do this job, and every
// rule of a Service's ClusterIP that we follow or break on purpose, as Kubernetes
// YAML with the right answer beside it: one *.txtar file each. README.md lists
// them.
//
// A file begins with the questions, one command line each, then its id and one
// sentence that says what is right. The manifests follow, and at last the expected
// answers (want.json, or want-1.json, want-2.json, …): what they state must be in
// the JSON that the command prints, and no endpoint may be missing or extra.
//
// The expected answers are written by hand from the rules. A change of code that
// makes one fail is a change of behaviour for users.
package cases
