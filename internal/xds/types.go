// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
)

// Type is the type URL of a resource.
type Type string

// The types that are served.
const (
	Cluster    Type = resource.ClusterType
	Assignment Type = resource.EndpointType
	Listener   Type = resource.ListenerType
	// TokenBucket is a rate that access log filters share.
	TokenBucket Type = "type.googleapis.com/envoy.type.v3.TokenBucket"
)

// offerOrder is the order in which additions are offered; removals run backwards.
// A type is served if and only if it is listed here.
var offerOrder = []Type{TokenBucket, Assignment, Cluster, Listener}

// String is the short name of the type, as used for metric labels and for people.
// Types that are not served are all "other".
func (t Type) String() string {
	switch t {
	case Cluster:
		return "cluster"
	case Assignment:
		return "assignment"
	case Listener:
		return "listener"
	case TokenBucket:
		return "token-bucket"
	default:
		return "other"
	}
}

// Key names a resource.
type Key struct {
	Type Type
	Name string
}

func (t Type) served() bool { return slices.Contains(offerOrder, t) }

// Resource is a resource to be offered under its name.
type Resource struct {
	Type    Type
	Name    string
	Message proto.Message
	// Named keeps the resource to Envoys that ask for it by name, or list it: it is
	// no part of all there is. So an Envoy that has just started does not get what
	// another one alone has asked for.
	Named bool
}

// Update is a set of changes that belong together. A key that is both set and
// removed ends up removed; of a key that is set twice the last one counts.
type Update struct {
	Set    []Resource
	Remove []Key
}

// blob is one version of a resource. The zero blob means "none".
type blob struct {
	version string
	bytes   []byte
}

func (b blob) none() bool { return b.version == "" }

// newBlob makes the deterministic bytes and the version of a message.
func newBlob(m proto.Message) (blob, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return blob{}, err
	}
	return blob{version: fmt.Sprintf("%016x-%d", xxhash.Sum64(b), len(b)), bytes: b}, nil
}

func (r Resource) key() (Key, error) {
	if !r.Type.served() {
		return Key{}, fmt.Errorf("type %q is not served", string(r.Type))
	}
	if r.Name == "" || r.Name == "*" {
		return Key{}, fmt.Errorf("%q is no %s name", r.Name, r.Type)
	}
	if r.Message == nil {
		return Key{}, fmt.Errorf("%s %q has no message", r.Type, r.Name)
	}
	return Key{r.Type, r.Name}, nil
}
