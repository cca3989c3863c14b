// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"
)

// FileVersion is the version of the demand file that Encode writes and the
// newest that Decode reads.
const FileVersion = 1

// Name is a remembered Service port.
type Name struct {
	Target netip.AddrPort
	// LastDial is the last dial seen, in whole seconds once it was on disk; the
	// zero Time when none is known.
	LastDial time.Time
}

// fileHead and fileName are the demand file:
//
//	{"version":1,"names":[
//	{"address":"10.96.0.12:80","lastDial":"2026-01-02T03:04:05Z"}
//	]}
//
// It is one JSON object, so a file cut short anywhere is no JSON at all, and one
// name a line, so that a person can read and correct it.
type (
	fileHead struct {
		Version *int        `json:"version"`
		Names   *[]fileName `json:"names"`
	}
	fileName struct {
		Address  string `json:"address"`
		LastDial string `json:"lastDial,omitempty"` // RFC 3339, UTC
	}
)

// Encode returns the demand file with these names, in the order of their
// addresses. Equal sets give equal bytes.
func Encode(names []Name) []byte {
	names = slices.Clone(names)
	slices.SortFunc(names, func(a, b Name) int { return a.Target.Compare(b.Target) })
	b := make([]byte, 0, 64+80*len(names))
	b = fmt.Appendf(b, `{"version":%d,"names":[`, FileVersion)
	for i, n := range names {
		if i > 0 {
			b = append(b, ',')
		}
		// Neither has a character that JSON would have escaped.
		b = append(b, "\n{\"address\":\""...)
		b = n.Target.AppendTo(b)
		if !n.LastDial.IsZero() {
			b = append(b, "\",\"lastDial\":\""...)
			b = n.LastDial.UTC().AppendFormat(b, time.RFC3339)
		}
		b = append(b, "\"}"...)
	}
	return append(b, "\n]}\n"...)
}

// Decode reads a demand file. It gives all names or an error that says which
// part of the file is wrong; never some of the names.
func Decode(file []byte) ([]Name, error) {
	version, err := decodeVersion(file)
	if err != nil {
		return nil, err
	}
	if version != FileVersion {
		return nil, fmt.Errorf("version: this agent reads version %d, the file has %d", FileVersion, version)
	}
	var head fileHead
	dec := json.NewDecoder(bytes.NewReader(file))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&head); err != nil {
		return nil, fmt.Errorf("parse JSON: %w", err)
	}
	if head.Names == nil {
		return nil, errors.New("names: missing")
	}
	names := make([]Name, 0, len(*head.Names))
	seen := make(map[netip.AddrPort]int, len(*head.Names))
	for i, f := range *head.Names {
		n, err := f.name()
		if err != nil {
			return nil, fmt.Errorf("names[%d].%w", i, err)
		}
		if j, ok := seen[n.Target]; ok {
			return nil, fmt.Errorf("names[%d].address: %s is names[%d] already", i, n.Target, j)
		}
		seen[n.Target] = i
		names = append(names, n)
	}
	return names, nil
}

// decodeVersion reads the version alone, so that a file of a later version is
// called that and not malformed.
func decodeVersion(file []byte) (int, error) {
	var head struct {
		Version *int `json:"version"`
	}
	dec := json.NewDecoder(bytes.NewReader(file))
	if err := dec.Decode(&head); err != nil {
		return 0, fmt.Errorf("parse JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return 0, errors.New("parse JSON: something follows the end of the object")
	}
	if head.Version == nil {
		return 0, errors.New("version: missing")
	}
	return *head.Version, nil
}

func (f fileName) name() (Name, error) {
	t, err := netip.ParseAddrPort(f.Address)
	if err != nil || !valid(t) {
		return Name{}, fmt.Errorf("address: %q is no IPv4 address and port", f.Address)
	}
	if t.String() != f.Address {
		return Name{}, fmt.Errorf("address: %q is not written as %q", f.Address, t)
	}
	n := Name{Target: t}
	if f.LastDial == "" {
		return n, nil
	}
	if n.LastDial, err = time.Parse(time.RFC3339, f.LastDial); err != nil {
		return Name{}, fmt.Errorf("lastDial: %q is no RFC 3339 time", f.LastDial)
	}
	n.LastDial = n.LastDial.UTC()
	return n, nil
}
