// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// validateAll applies the API's field rules to a message and to every message
// that is packed into it.
func validateAll(m proto.Message) error {
	var errs []error
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			errs = append(errs, err)
		}
	}
	if a, ok := m.(*anypb.Any); ok {
		inner, err := a.UnmarshalNew()
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		return errors.Join(append(errs, validateAll(inner))...)
	}
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		each := func(v protoreflect.Value) {
			if err := validateAll(v.Message().Interface()); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", f.Name(), err))
			}
		}
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { each(v); return true })
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				each(v.List().Get(i))
			}
		case !f.IsMap() && !f.IsList() && f.Message() != nil:
			each(v)
		}
		return true
	})
	return errors.Join(errs...)
}

func checkValid(t *testing.T, m proto.Message) {
	t.Helper()
	if err := validateAll(m); err != nil {
		t.Errorf("%s breaks the API's rules: %v", m.ProtoReflect().Descriptor().FullName(), err)
	}
}
