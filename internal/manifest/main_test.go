// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"aether.io/aether/internal/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var cmpOpts = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

// image is what a receiver of changes knows.
type image map[string]model.Change

// apply applies changes; a delete of something unknown, or a set that changes
// nothing, is an error of whoever made the changes.
func (m image) apply(cs []model.Change) error {
	seenSet := false
	for _, c := range cs {
		var key string
		set := true
		switch c := c.(type) {
		case model.SetService:
			key = "service " + c.Service.Name.String()
		case model.SetSlice:
			key = "slice " + c.Slice.Name.String()
		case model.SetServiceCIDR:
			key = "cidr " + c.Name
		case model.SetImport:
			key = "import " + c.Import.Name.String()
		case model.SetNode:
			key = "node " + c.Node.Name
		case model.DeleteService:
			key, set = "service "+c.Name.String(), false
			if was, ok := m[key].(model.SetService); !ok || was.Service.UID != c.UID {
				return fmt.Errorf("%+v deletes another Service than %+v", c, was)
			}
		case model.DeleteSlice:
			key, set = "slice "+c.Name.String(), false
		case model.DeleteServiceCIDR:
			key, set = "cidr "+c.Name, false
		case model.DeleteImport:
			key, set = "import "+c.Name.String(), false
		case model.DeleteNode:
			key, set = "node "+c.Name, false
		default:
			return fmt.Errorf("unexpected change %T", c)
		}
		was, known := m[key]
		switch {
		case set && known && cmp.Equal(was, c, cmpOpts):
			return fmt.Errorf("%s is set to what it was", key)
		case set:
			m[key], seenSet = c, true
		case !known:
			return fmt.Errorf("%s is deleted but not known", key)
		case seenSet:
			return fmt.Errorf("%s is deleted after something was set", key)
		default:
			delete(m, key)
		}
	}
	return nil
}

func mustPrefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func mustApply(t interface {
	Helper()
	Fatalf(string, ...any)
}, m image, cs []model.Change,
) {
	t.Helper()
	if err := m.apply(cs); err != nil {
		t.Fatalf("changes %+v: %v", cs, err)
	}
}

func write(t interface {
	Helper()
	Fatalf(string, ...any)
}, dir, name, text string,
) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatalf("%v", err)
	}
}

// service is a manifest of Service default/name with that VIP.
func service(name, vip string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {clusterIP: %s, ports: [{port: 80}]}\n", name, vip)
}
