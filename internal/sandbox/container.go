// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/sandbox/echo"
)

// The images that need none: programs built into every binary that calls
// BuiltinMain.
const (
	imageEcho   = "aether/echo"
	imageClient = "aether/client"
)

// builtinPlaceholder stands for this program in a command line until the sandbox
// knows its path.
const builtinPlaceholder = "\x00self"

// containerCommand returns the command line of a container: command and args as
// in Kubernetes, or a built-in image's program with args.
func containerCommand(c *corev1.Container) ([]string, error) {
	if len(c.Command) > 0 {
		return slices.Concat(c.Command, c.Args), nil
	}
	switch image, _, _ := strings.Cut(c.Image, ":"); image {
	case imageEcho:
		return slices.Concat([]string{builtinPlaceholder, argEcho}, c.Args), nil
	case imageClient:
		return slices.Concat([]string{builtinPlaceholder, argClient}, c.Args), nil
	}
	return nil, fmt.Errorf("container %s: image %q is not fetched here: give a command, or use %s or %s",
		c.Name, c.Image, imageEcho, imageClient)
}

// podFacts is what the downward API can tell a container.
type podFacts struct {
	name           model.Name
	uid            string
	ip, nodeIP     netip.Addr
	node           string
	serviceAccount string
	labels         map[string]string
	annotations    map[string]string
}

// containerEnv resolves a container's environment on top of a minimal base. A
// variable that needs an object the sandbox does not hold is an error unless it
// is optional.
func containerEnv(c *corev1.Container, f podFacts, hostname string) ([]string, error) {
	vars := map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": homeDir(), "HOSTNAME": hostname,
	}
	order := []string{"PATH", "HOME", "HOSTNAME"}
	if image, _, _ := strings.Cut(c.Image, ":"); image == imageEcho { // says on which node it is
		vars[echo.NodeVariable] = f.node
		order = append(order, echo.NodeVariable)
	}
	for _, e := range c.EnvFrom {
		optional := e.ConfigMapRef != nil && isTrue(e.ConfigMapRef.Optional) || e.SecretRef != nil && isTrue(e.SecretRef.Optional)
		if !optional {
			return nil, fmt.Errorf("container %s: envFrom needs a ConfigMap or Secret, which the sandbox does not hold", c.Name)
		}
	}
	for _, e := range c.Env {
		value := expand(e.Value, vars)
		if src := e.ValueFrom; src != nil {
			if src.FieldRef == nil {
				if src.ConfigMapKeyRef != nil && isTrue(src.ConfigMapKeyRef.Optional) ||
					src.SecretKeyRef != nil && isTrue(src.SecretKeyRef.Optional) {
					continue
				}
				return nil, fmt.Errorf("container %s: env %s: only value and fieldRef are known here", c.Name, e.Name)
			}
			var err error
			if value, err = f.field(src.FieldRef.FieldPath); err != nil {
				return nil, fmt.Errorf("container %s: env %s: %w", c.Name, e.Name, err)
			}
		}
		if _, seen := vars[e.Name]; !seen {
			order = append(order, e.Name)
		}
		vars[e.Name] = value
	}
	out := make([]string, 0, len(order))
	for _, k := range order {
		out = append(out, k+"="+vars[k])
	}
	return out, nil
}

// homeDir is root's, or that of the user whose sandbox it is.
func homeDir() string {
	if !rootless() {
		return "/root"
	}
	return cmp.Or(os.Getenv("HOME"), "/")
}

func isTrue(b *bool) bool { return b != nil && *b }

// field resolves a downward API field path.
func (f podFacts) field(path string) (string, error) {
	switch path {
	case "metadata.name":
		return f.name.Name, nil
	case "metadata.namespace":
		return f.name.Namespace, nil
	case "metadata.uid":
		return f.uid, nil
	case "spec.nodeName":
		return f.node, nil
	case "spec.serviceAccountName":
		return f.serviceAccount, nil
	case "status.podIP", "status.podIPs":
		return f.ip.String(), nil
	case "status.hostIP", "status.hostIPs":
		return f.nodeIP.String(), nil
	}
	for prefix, m := range map[string]map[string]string{"metadata.labels": f.labels, "metadata.annotations": f.annotations} {
		if key, ok := strings.CutPrefix(path, prefix+"['"); ok && strings.HasSuffix(key, "']") {
			return m[strings.TrimSuffix(key, "']")], nil
		}
	}
	return "", fmt.Errorf("field %q is not known here", path)
}

// expand replaces $(NAME) by its value, leaves unknown names as they are and
// turns $$ into $, as Kubernetes does in command, args and env.
func expand(s string, vars map[string]string) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i+1 == len(s) {
			return b.String() + s
		}
		b.WriteString(s[:i])
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			s = s[i+2:]
		case '(':
			end := strings.IndexByte(s[i:], ')')
			if end < 0 {
				return b.String() + s[i:]
			}
			ref := s[i : i+end+1]
			if v, ok := vars[ref[2:len(ref)-1]]; ok {
				b.WriteString(v)
			} else {
				b.WriteString(ref)
			}
			s = s[i+end+1:]
		default:
			b.WriteByte('$')
			s = s[i+1:]
		}
	}
}

// expandAll expands a command line by an environment.
func expandAll(argv, env []string) []string {
	vars := map[string]string{}
	for _, e := range env {
		k, v, _ := strings.Cut(e, "=")
		vars[k] = v
	}
	out := make([]string, len(argv))
	for i, a := range argv {
		out[i] = expand(a, vars)
	}
	return out
}

// containerPort finds a probe's port: a number, or the name of one of the
// container's own ports.
func containerPort(c *corev1.Container, name string) (uint16, error) {
	for _, p := range c.Ports {
		if p.Name == name {
			return uint16(p.ContainerPort), nil
		}
	}
	if n, err := strconv.ParseUint(name, 10, 16); err == nil && n > 0 {
		return uint16(n), nil
	}
	return 0, fmt.Errorf("container %s has no port %q", c.Name, name)
}
