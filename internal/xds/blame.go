// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// blame splits the resources of a rejected response, by Envoy's words, into those
// that are named as the cause and the others. Nobody is guilty when the words
// name none of them.
//
// Envoy 1.40 writes "Error adding/updating listener(s) NAME: REASON" and the same
// for clusters, several names after one another. A reason may mention an innocent
// resource (the listener that has the address already), so a name that is followed
// by ": " counts before one that merely occurs.
func blame(names []string, message string) (guilty, innocent []string) {
	accused, mentioned := map[string]bool{}, map[string]bool{}
	for _, name := range names {
		for at := 0; ; {
			i := strings.Index(message[at:], name)
			if i < 0 {
				break
			}
			start := at + i
			end := start + len(name)
			at = start + 1
			if !endsBefore(message[:start]) || !startsAfter(message[end:]) {
				continue
			}
			mentioned[name] = true
			if strings.HasPrefix(message[end:], ": ") {
				accused[name] = true
			}
		}
	}
	if len(accused) == 0 {
		accused = mentioned
	}
	for _, name := range names {
		if accused[name] {
			guilty = append(guilty, name)
		} else {
			innocent = append(innocent, name)
		}
	}
	return guilty, innocent
}

// inName reports whether r can be part of a resource name.
func inName(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("._:/-*~", r)
}

// endsBefore reports whether text before a name cannot be a part of that name.
func endsBefore(text string) bool {
	r, n := utf8.DecodeLastRuneInString(text)
	return n == 0 || !inName(r)
}

// startsAfter is the same for the text after it. Punctuation ends a name when
// nothing follows that could belong to it.
func startsAfter(text string) bool {
	text = strings.TrimLeft(text, ".:")
	r, n := utf8.DecodeRuneInString(text)
	return n == 0 || !inName(r)
}
