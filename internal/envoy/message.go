// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Marshal returns the bytes of a message. Equal messages give equal bytes.
func Marshal(m proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("marshal %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return b, nil
}

// pack wraps a message for a field that holds any type. Only a string that is
// not UTF-8 could fail to marshal, and every string from outside goes through
// literal, text or the domain checks of the sources.
func pack(m proto.Message) *anypb.Any {
	b, err := Marshal(m)
	if err != nil {
		panic(err)
	}
	return &anypb.Any{TypeUrl: "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName()), Value: b}
}

// extension wraps a message as a named extension.
func extension(name string, m proto.Message) *corev3.TypedExtensionConfig {
	return &corev3.TypedExtensionConfig{Name: name, TypedConfig: pack(m)}
}

// text makes any string fit a protobuf string field.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// literal makes any string stand for itself inside a format string, where Envoy
// reads % as the start of an operator.
func literal(s string) string { return strings.ReplaceAll(text(s), "%", "%%") }

func duration(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

func u32(n uint32) *wrapperspb.UInt32Value { return wrapperspb.UInt32(n) }

// stringFields returns a Struct of string fields.
func stringFields(fields map[string]string) *structpb.Struct {
	s := &structpb.Struct{Fields: make(map[string]*structpb.Value, len(fields))}
	for k, v := range fields {
		s.Fields[k] = structpb.NewStringValue(text(v))
	}
	return s
}
