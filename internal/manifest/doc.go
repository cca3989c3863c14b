// SPDX-License-Identifier: Apache-2.0

// Package manifest is the source of truth that needs no API server: directories
// of Kubernetes YAML or JSON, read once (Load) or watched (Watch).
//
// # What is read
//
// An argument is a directory, read without its subdirectories, or a single file.
// In a directory the files *.yaml, *.yml and *.json count, in the order of their
// names; names that begin with a dot, and the temporary files of editors, do not.
// A file holds any number of documents, and Lists. Symbolic links are followed,
// so a mounted ConfigMap works.
//
// Read are Service, EndpointSlice, ServiceCIDR, ServiceImport, Node and Pod. A Pod
// changes nothing in the model; it is handed on as an object. Other kinds are
// skipped with a Note. What an API server would have defaulted is filled in, and
// the converters are those of the Kubernetes source.
//
// The same object twice in one directory (or file): the later one is used, with a
// Note. An object of a later argument replaces one of an earlier argument without
// a word: that is how a generated directory overrides a hand-written one.
//
// # What is wrong with a file
//
// A Problem names file, object and field. It is raised for what cannot be read,
// for fields of a wrong type, and for what an API server would refuse and the
// node could not serve as written. A file with a Problem counts as a whole with
// its last good content, or not at all if it never had one: nothing that worked
// is lost by a slip. What the node can serve all the same (an unknown field, an
// unnamed port among several) is a Note. Slice content that kube-proxy tolerates
// is neither: the converter marks or ignores it.
//
// A file that is gone takes its objects with it. A directory that is gone does
// not: it cannot be read, which is a Problem, and its last content stays until it
// is back.
//
// # Invariants
//
//   - The same files give the same result, in whatever order the system lists
//     them, and whatever was broken in between.
//   - The changes of all batches, applied in order, give the state that a fresh
//     Load gives.
//   - Values handed out are shared and must not be modified.
//
// parse, merge and diff are pure. Only scan.go and watch.go touch the disk, the
// clock or a goroutine. The package logs nothing and decides nothing about
// traffic.
package manifest
