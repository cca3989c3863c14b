// SPDX-License-Identifier: Apache-2.0

package echo

import (
	"slices"
	"strings"
	"testing"
)

func TestExpand(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"web:80", []string{"web:80"}},
		{"web-1.shop:80", []string{"web-1.shop:80"}},
		{"10-1:80", []string{"10-1:80"}},
		{"10.96.0.1:80", []string{"10.96.0.1:80"}},
		{"no-port", []string{"no-port"}},
		{"10.96.0.255-10.96.1.1:80", []string{"10.96.0.255:80", "10.96.1.0:80", "10.96.1.1:80"}},
		{"10.96.0.1:79-81", []string{"10.96.0.1:79", "10.96.0.1:80", "10.96.0.1:81"}},
		{"255.255.255.255-255.255.255.255:65535-65535", []string{"255.255.255.255:65535"}},
		{"10.0.0.1-10.0.0.2:1-2", []string{"10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1", "10.0.0.2:2"}},
	} {
		got, err := expand(c.text)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", c.text, got, err, c.want)
		}
	}
	for text, want := range map[string]string{
		"10.96.0.2-10.96.0.1:80":             "want an IPv4 address",
		"10.96.0.2-x:80":                     "want an IPv4 address",
		"web:1-2":                            "want an IPv4 address",
		"10.96.0.1:2-1":                      "want a port",
		"10.96.0.1:0-1":                      "want a port",
		"10.96.0.1:1-65536":                  "want a port",
		"0.0.0.0-255.255.255.255:80":         "more than",
		"10.96.0.0-10.96.255.255:1-65535":    "more than",
		"0.0.0.0-255.255.255.255:1-65535":    "more than",
		"10.96.0.1-10.96.0.1-10.96.0.1:1-1-": "want an IPv4 address",
	} {
		if got, err := expand(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %d targets, %v; want an error with %q", text, len(got), err, want)
		}
	}
}
