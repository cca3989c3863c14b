// SPDX-License-Identifier: Apache-2.0

package echo

import (
	"bytes"
	"strings"
)

// pattern is an endless stream whose every byte is known from its offset.
type pattern struct{ offset int64 }

// 64 KiB and one byte: a shift by a buffer's size does not go unseen.
var patternText = []byte(strings.Repeat("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-\n", 1024) + "!")

func (p *pattern) Read(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		c := copy(b[n:], patternText[p.offset%int64(len(patternText)):])
		n += c
		p.offset += int64(c)
	}
	return n, nil
}

// matches reports whether b is what the stream says next, and moves on.
func (p *pattern) matches(b []byte) bool {
	for len(b) > 0 {
		want := patternText[p.offset%int64(len(patternText)):]
		n := min(len(want), len(b))
		if !bytes.Equal(want[:n], b[:n]) {
			return false
		}
		b = b[n:]
		p.offset += int64(n)
	}
	return true
}
