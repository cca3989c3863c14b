// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"aether.io/aether/internal/ctl"
	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/markdown"
)

const flagsReference = "docs/reference/flags.md"

var (
	// goFlag is one flag in the help of Go's package flag, pflagLine one in cobra's.
	goFlag       = regexp.MustCompile(`(?m)^  -([\w-]+)(?: (\S.*))?\n    \t(.+)$`)
	pflagLine    = regexp.MustCompile(`(?m)^ +(?:-(\w), |    )--([\w-]+)(?: (\S.*?))? {3,}(\S.*)$`)
	defaultValue = regexp.MustCompile(` \(default "?([^")]*)"?\)$`)
)

// goFlags reads the flags of a help text as rows of a table.
func goFlags(t *testing.T, help string) [][]string {
	t.Helper()
	var rows [][]string
	for _, m := range goFlag.FindAllStringSubmatch(help, -1) {
		value, text, def := m[2], m[3], ""
		if d := defaultValue.FindStringSubmatch(text); d != nil {
			text, def = strings.TrimSuffix(text, d[0]), d[1]
		}
		if m[1] == "descriptor-limit" {
			def = "this process's own"
		} else if def != "" {
			def = "`" + def + "`"
		}
		name := "--" + m[1]
		if value != "" {
			name += " " + strings.ToUpper(value)
		}
		rows = append(rows, []string{"`" + name + "`", def, text})
	}
	if len(rows) == 0 {
		t.Fatalf("no flags in the help:\n%s", help)
	}
	return rows
}

var flagHead = []string{"flag", "default", ""}

// TestFlagsReference: flags, defaults and words of docs/reference/flags.md are
// those of the programs.
func TestFlagsReference(t *testing.T) {
	t.Setenv("AETHER_SANDBOX", "") // they are defaults
	t.Setenv("NODE_NAME", "")
	cmd := exec.Command("go", "run", "-buildvcs=false", "./cmd/aether-agent", "--help")
	cmd.Dir = repository()
	var help bytes.Buffer
	cmd.Stderr = &help
	if err := cmd.Run(); err != nil {
		t.Fatalf("ask the agent for help: %v\n%s", err, help.String())
	}
	generated(t, flagsReference, "agent-flags", markdown.Table(flagHead, goFlags(t, help.String())))
	cmd = exec.Command("go", "run", "-buildvcs=false", "./cmd/aether-agent", "proxy", "--help")
	cmd.Dir = repository()
	var proxy bytes.Buffer
	cmd.Stderr = &proxy
	if err := cmd.Run(); err != nil {
		t.Fatalf("ask the supervisor for help: %v\n%s", err, proxy.String())
	}
	generated(t, flagsReference, "proxy-flags", markdown.Table(flagHead, goFlags(t, proxy.String())))
	usage, _, _ := strings.Cut(help.String(), "\n\n")
	for line := range strings.Lines(strings.TrimPrefix(usage, "Usage:\n")) {
		if !strings.Contains(section(t, flagsReference, "aether-agent"), strings.TrimSpace(line)) {
			t.Errorf("%s does not say %q", flagsReference, strings.TrimSpace(line))
		}
	}
	for name, main := range map[string]func([]string, io.Writer, io.Writer) int{"client-flags": echo.ClientMain, "echo-flags": echo.ServerMain} {
		var out bytes.Buffer
		main([]string{"--help"}, &out, &out)
		rows := goFlags(t, out.String())
		for _, r := range rows {
			if r[0] == "`--name NAME`" {
				r[1] = "the pod's name" // of this machine, in the help
			}
		}
		generated(t, flagsReference, name, markdown.Table(flagHead, rows))
	}
	generated(t, flagsReference, "aetherctl-commands", commands(t, nil, ""))
}

// help runs aetherctl and returns what it prints.
func help(t *testing.T, command []string) string {
	t.Helper()
	var out bytes.Buffer
	if code := ctl.Main(t.Context(), append(append([]string{}, command...), "--help"), ctl.IO{In: strings.NewReader(""), Out: &out, Err: &out}); code != 0 {
		t.Fatalf("aetherctl %v --help: exit code %d\n%s", command, code, out.String())
	}
	return out.String()
}

var subcommand = regexp.MustCompile(`(?m)^  ([a-z-]+) +(\S.*)$`)

// commands describes a command and those under it.
func commands(t *testing.T, path []string, short string) string {
	t.Helper()
	text := help(t, path)
	_, list, isGroup := strings.Cut(text, "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	_, flags, _ := strings.Cut(text, "\nFlags:\n")
	flags, _, _ = strings.Cut(flags, "\n\n")
	var b strings.Builder
	if !isGroup || path == nil {
		_, usage, _ := strings.Cut(text, "Usage:\n")
		usage, _, _ = strings.Cut(strings.TrimSpace(usage), "\n")
		usage = strings.TrimSuffix(usage, " [flags]")
		if path == nil {
			usage, short = usage+" [command]", "For every command:"
		}
		fmt.Fprintf(&b, "### `%s`\n\n%s\n\n", usage, short)
		if rows := pflags(flags); len(rows) > 0 {
			b.WriteString(markdown.Table(flagHead, rows) + "\n")
		}
	}
	for _, m := range subcommand.FindAllStringSubmatch(list, -1) {
		if m[1] != "help" && m[1] != "completion" {
			b.WriteString(commands(t, append(append([]string{}, path...), m[1]), m[2]+"."))
		}
	}
	if path == nil {
		return strings.TrimSuffix(b.String(), "\n")
	}
	return b.String()
}

func pflags(text string) [][]string {
	var rows [][]string
	for _, m := range pflagLine.FindAllStringSubmatch(text, -1) {
		short, name, value, words, def := m[1], m[2], m[3], m[4], ""
		if name == "help" {
			continue
		}
		if d := defaultValue.FindStringSubmatch(words); d != nil && !strings.ContainsAny(d[1], " $") {
			words, def = strings.TrimSuffix(words, d[0]), "`"+d[1]+"`"
		}
		flag := "--" + name
		if value != "" {
			flag += " " + strings.ToUpper(value)
		}
		if short != "" {
			flag = "-" + short + ", " + flag
		}
		rows = append(rows, []string{"`" + flag + "`", def, words})
	}
	return rows
}
