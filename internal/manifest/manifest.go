// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"aether.io/aether/internal/convert"
	"aether.io/aether/internal/model"
)

// Options fix what the files need not say.
type Options struct {
	// DefaultServiceCIDR is the IPv4 Service range used, as the ServiceCIDR object
	// "kubernetes", while no argument holds any ServiceCIDR. The zero Prefix means
	// that there is none.
	DefaultServiceCIDR netip.Prefix
}

// Objects are the objects in force, each kind sorted by namespace and name, with
// the API server's defaults filled in. They must not be modified.
type Objects struct {
	Services       []*corev1.Service
	EndpointSlices []*discoveryv1.EndpointSlice // unusable ones too
	ServiceCIDRs   []*networkingv1.ServiceCIDR
	ServiceImports []*convert.ServiceImport
	Nodes          []*corev1.Node
	Pods           []*corev1.Pod
}

// Problem is a reason for which a file, or an argument as a whole, does not count
// with its present content.
type Problem struct {
	File   string // path: the argument joined with the file's name, or the argument
	Object string // "Service default/web", "document 2", or empty for the whole file
	Field  string // "spec.ports[0].port", or empty for the whole object
	Err    string // what is wrong, in words
}

// Source returns where the problem is: file, object and field as far as known.
func (p Problem) Source() string { return place(p.File, p.Object, p.Field) }

// String returns the place and the words.
func (p Problem) String() string { return p.Source() + ": " + p.Err }

// Note is something a person should hear of about content that counts all the same.
type Note struct {
	File   string
	Object string
	Field  string
	Text   string
}

// Source returns what the note is about: file, object and field as far as known.
func (n Note) Source() string { return place(n.File, n.Object, n.Field) }

// String returns the place and the words.
func (n Note) String() string { return n.Source() + ": " + n.Text }

func place(file, object, field string) string {
	var parts []string
	for _, s := range []string{file, object, field} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// Result is what Load read.
type Result struct {
	Objects  Objects
	Changes  []model.Change // everything, as changes to an empty State
	Problems []Problem
	Notes    []Note
}

// Batch is what Watch delivers.
type Batch struct {
	// Changes since the batch before, deletes first; everything in the first one.
	// It may be empty, when only objects, problems or notes changed.
	Changes []model.Change
	// Problems and Notes, like Objects, are the complete present state.
	Problems []Problem
	Notes    []Note
	// Synced is true once every argument has been readable. It stays true, and is
	// true in the first batch unless an argument cannot be read then: until it can,
	// nobody may conclude from Changes that a Service does not exist.
	Synced bool

	objects inventory
}

// Objects lists the objects in force. It sorts them all, so who needs the changes
// alone does not call it.
func (b Batch) Objects() Objects { return b.objects.byKind() }

// report collects what is wrong with one object.
type report struct {
	file, object string
	problems     []Problem
	notes        []Note
}

func (r *report) problem(field, format string, args ...any) {
	r.problems = append(r.problems, Problem{r.file, r.object, field, fmt.Sprintf(format, args...)})
}

func (r *report) note(field, format string, args ...any) {
	r.notes = append(r.notes, Note{r.file, r.object, field, fmt.Sprintf(format, args...)})
}
