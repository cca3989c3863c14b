// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"bytes"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// negotiate chooses what to answer in, by the client's order of preference. The
// parameters "as", "v" and "g" ask for another form of the objects, which only
// discovery has.
func negotiate(r *http.Request, protobuf bool) (runtime.SerializerInfo, bool) {
	accept := r.Header.Get("Accept")
	if accept == "" {
		accept = "*/*"
	}
	for part := range strings.SplitSeq(accept, ",") {
		media, params, err := mime.ParseMediaType(part)
		if err != nil || params["as"] != "" {
			continue
		}
		if media == "*/*" || media == "application/*" {
			media = runtime.ContentTypeJSON
		}
		if media == runtime.ContentTypeProtobuf && !protobuf || media == runtime.ContentTypeYAML {
			continue
		}
		if info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), media); ok {
			return info, true
		}
	}
	return runtime.SerializerInfo{}, false
}

// encode writes an object of the version. Objects without a Go type carry theirs
// with them.
func encode(s runtime.Encoder, gv schema.GroupVersion, o runtime.Object) ([]byte, error) {
	var b bytes.Buffer
	if _, custom := o.(runtime.Unstructured); !custom {
		s = codecs.EncoderForVersion(s, gv)
	}
	if err := s.Encode(o, &b); err != nil {
		return nil, fmt.Errorf("encode %T: %w", o, err)
	}
	return b.Bytes(), nil
}

// typedList makes a list of a registered kind.
func typedList(gvk schema.GroupVersionKind, about metav1.ListMeta, objects []runtime.Object) (runtime.Object, error) {
	list, err := scheme.New(gvk)
	if err != nil {
		return nil, fmt.Errorf("make a %s: %w", gvk.Kind, err)
	}
	if err := meta.SetList(list, objects); err != nil {
		return nil, fmt.Errorf("fill a %s: %w", gvk.Kind, err)
	}
	access, err := meta.ListAccessor(list)
	if err != nil {
		return nil, fmt.Errorf("fill a %s: %w", gvk.Kind, err)
	}
	access.SetResourceVersion(about.ResourceVersion)
	access.SetContinue(about.Continue)
	access.SetRemainingItemCount(about.RemainingItemCount)
	return list, nil
}
