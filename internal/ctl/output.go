// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"charm.land/lipgloss/v2"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// format is the value of -o.
type format string

// The formats. The empty one is text for people.
const (
	formatText format = ""
	formatWide format = "wide"
	formatJSON format = "json"
	formatYAML format = "yaml"
)

var formats = []string{string(formatJSON), string(formatYAML), string(formatWide)}

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "format" }

// Set implements pflag.Value.
func (f *format) Set(s string) error {
	if !slices.Contains(formats, s) {
		return fmt.Errorf("want one of %s", strings.Join(formats, ", "))
	}
	*f = format(s)
	return nil
}

// addOutputFlag gives the command -o.
func addOutputFlag(cmd *cobra.Command, f *format) {
	cmd.Flags().VarP(f, "output", "o", "print `format` instead of text: "+strings.Join(formats, ", "))
	must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)))
}

// print writes v in a machine's format, or else what text returns.
func (c *cli) print(f format, v any, text func(wide bool) string) error {
	switch f {
	case formatJSON:
		e := json.NewEncoder(c.Out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return printed(e.Encode(v))
	case formatYAML:
		b, err := yaml.Marshal(v)
		if err != nil {
			return fmt.Errorf("encode the answer: %w", err)
		}
		_, err = c.Out.Write(b)
		return printed(err)
	default:
		// Takes the colours out again unless the writer is a terminal that has them.
		_, err := lipgloss.Fprint(c.Out, text(f == formatWide))
		return printed(err)
	}
}

func printed(err error) error {
	if err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return nil
}

// The styles of text.
var (
	styleHead   = lipgloss.NewStyle().Bold(true)
	styleDim    = lipgloss.NewStyle().Faint(true)
	styleGood   = lipgloss.NewStyle().Foreground(lipgloss.Green)
	styleBad    = lipgloss.NewStyle().Foreground(lipgloss.Red)
	stylePass   = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	stylePlain  = lipgloss.NewStyle()
	tableIndent = "  "
)

// table is a list for people. A style paints its whole row.
type table struct {
	head   []string
	rows   [][]string
	styles []lipgloss.Style
}

func (t *table) add(style lipgloss.Style, cells ...string) {
	t.rows = append(t.rows, cells)
	t.styles = append(t.styles, style)
}

// render lays the table out, each line after indent.
func (t *table) render(indent string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	line(w, t.head)
	for _, r := range t.rows {
		line(w, r)
	}
	w.Flush() // a strings.Builder never fails
	var out strings.Builder
	for i, l := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
		style := styleHead
		if i > 0 {
			style = t.styles[i-1]
		}
		out.WriteString(indent + style.Render(strings.TrimRight(l, " ")) + "\n")
	}
	return out.String()
}

func line(w io.Writer, cells []string) {
	clean := make([]string, len(cells))
	for i, c := range cells {
		clean[i] = printable(c)
	}
	fmt.Fprintln(w, strings.Join(clean, "\t"))
}

// printable returns s with everything a terminal might act upon escaped. Names
// and addresses come from manifests that nobody has validated.
func printable(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	return strings.Trim(strconv.Quote(s), `"`)
}

// orDash is for empty cells.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// answerStyle paints by what happens to a connection.
func answerStyle(answer string) lipgloss.Style {
	switch answer {
	case "balance", "mesh":
		return styleGood
	case "refuse":
		return styleBad
	default:
		return stylePass
	}
}
