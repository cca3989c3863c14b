// SPDX-License-Identifier: Apache-2.0

// Package rules holds the rules of the house as tests: who may import what,
// what every package and file must say, how long files and functions may be,
// and that the documents speak of what the code has.
package rules
