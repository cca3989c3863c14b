// SPDX-License-Identifier: Apache-2.0

// Package markdown reads the parts of a Markdown document that a test can hold
// against the program: code fences, tables, sections, links, and samples of
// output in which an ellipsis stands for what differs from run to run.
//
// It knows the Markdown of this repository's own documents, not all of it, and
// does no I/O.
package markdown

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

// Fence is one fenced block of code.
type Fence struct {
	// Info is what follows the opening backticks, such as "sh" or "json api.Pod".
	Info string
	Text string // with the closing newline of its last line
	Line int    // of the opening backticks, from 1
}

const ticks = "```"

// Fences returns the fenced blocks of a document, in order.
func Fences(text string) []Fence {
	var out []Fence
	var open *Fence
	for i, line := range strings.Split(text, "\n") {
		info, fenced := strings.CutPrefix(line, ticks)
		switch {
		case open != nil && fenced:
			out = append(out, *open)
			open = nil
		case open != nil:
			open.Text += line + "\n"
		case fenced:
			open = &Fence{Info: strings.TrimSpace(info), Line: i + 1}
		}
	}
	return out
}

// Prose returns the document with its fenced blocks blanked out: line numbers
// stay.
func Prose(text string) string {
	lines := strings.Split(text, "\n")
	inside := false
	for i, line := range lines {
		fenced := strings.HasPrefix(line, ticks)
		if fenced {
			inside = !inside
		}
		if fenced || inside {
			lines[i] = ""
		}
	}
	return strings.Join(lines, "\n")
}

// Section returns what stands under the heading of those words, up to the next
// heading of its level or a higher one; ok is false when there is no such heading.
func Section(text, heading string) (section string, ok bool) {
	lines := strings.Split(text, "\n")
	prose := strings.Split(Prose(text), "\n")
	begin, level := -1, 0
	for i, line := range prose {
		n, words := headingOf(line)
		switch {
		case begin < 0 && n > 0 && words == heading:
			begin, level = i+1, n
		case begin >= 0 && n > 0 && n <= level:
			return strings.Join(lines[begin:i], "\n"), true
		}
	}
	if begin < 0 {
		return "", false
	}
	return strings.Join(lines[begin:], "\n"), true
}

// Headings returns the words of every heading, in order.
func Headings(text string) []string {
	var out []string
	for _, line := range strings.Split(Prose(text), "\n") {
		if n, words := headingOf(line); n > 0 {
			out = append(out, words)
		}
	}
	return out
}

func headingOf(line string) (level int, words string) {
	rest := strings.TrimLeft(line, "#")
	level = len(line) - len(rest)
	if level == 0 || !strings.HasPrefix(rest, " ") {
		return 0, ""
	}
	return level, strings.TrimSpace(rest)
}

// Anchor returns the fragment under which a heading can be linked to.
func Anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Rows returns the rows of the first table of the text, without its head, cell by
// cell.
func Rows(text string) [][]string {
	var out [][]string
	seen := 0
	for _, line := range strings.Split(Prose(text), "\n") {
		if !strings.HasPrefix(line, "|") {
			if seen > 0 {
				break
			}
			continue
		}
		if seen++; seen <= 2 {
			continue // the head and the line under it
		}
		out = append(out, cells(line))
	}
	return out
}

func cells(line string) []string {
	const pipe = "\x00"
	line = strings.ReplaceAll(strings.TrimSpace(line), `\|`, pipe)
	parts := strings.Split(strings.Trim(line, "|"), "|")
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(strings.TrimSpace(p), pipe, "|")
	}
	return parts
}

// Table writes a table. Pipes within cells are escaped.
func Table(head []string, rows [][]string) string {
	var b strings.Builder
	line := func(cs []string) {
		b.WriteByte('|')
		for _, c := range cs {
			b.WriteString(" " + strings.ReplaceAll(c, "|", `\|`) + " |")
		}
		b.WriteByte('\n')
	}
	line(head)
	b.WriteString(strings.Repeat("|---", len(head)) + "|\n")
	for _, r := range rows {
		line(r)
	}
	return b.String()
}

var code = regexp.MustCompile("`([^`]+)`")

// Code returns the text of every code span, in order.
func Code(text string) []string {
	var out []string
	for _, m := range code.FindAllStringSubmatch(Prose(text), -1) {
		out = append(out, m[1])
	}
	return out
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// Links returns the targets of every link, in order.
func Links(text string) []string {
	var out []string
	for _, m := range link.FindAllStringSubmatch(Prose(text), -1) {
		out = append(out, m[1])
	}
	return out
}

// Command is one command of a fence, with the output the document shows for it.
type Command struct {
	Line   string // without the prompt, a comment after it, and "sudo"
	Output string
}

// Commands returns the commands of a fence: every line of a fence "sh", and the
// lines of a fence "console" that begin with a prompt.
func (f Fence) Commands() []Command {
	var out []Command
	for _, line := range strings.Split(strings.TrimSuffix(f.Text, "\n"), "\n") {
		text, prompted := strings.CutPrefix(line, "$ ")
		switch {
		case f.Info == "sh":
			if c := uncommented(line); c != "" {
				out = append(out, Command{Line: c})
			}
		case f.Info != "console":
		case prompted:
			out = append(out, Command{Line: uncommented(text)})
		case len(out) > 0:
			out[len(out)-1].Output += line + "\n"
		}
	}
	return out
}

var comment = regexp.MustCompile(`(^|\s)#.*$`)

func uncommented(line string) string {
	line = strings.TrimSpace(comment.ReplaceAllString(line, ""))
	return strings.TrimPrefix(line, "sudo ")
}

// Ellipsis stands for anything within a line of a sample, and alone on a line for
// any number of lines.
const Ellipsis = "…"

// Match reports, as an error, how an output differs from a document's sample.
func Match(sample, output string) error {
	var b strings.Builder
	b.WriteString(`\A`)
	for _, line := range strings.Split(strings.TrimRight(sample, "\n"), "\n") {
		if strings.TrimSpace(line) == Ellipsis {
			b.WriteString(`(?:.*\n)*?`)
			continue
		}
		parts := strings.Split(strings.TrimRight(line, " "), Ellipsis)
		for i, p := range parts {
			parts[i] = regexp.QuoteMeta(p)
		}
		b.WriteString(strings.Join(parts, `.*?`) + ` *\n`)
	}
	b.WriteString(`\z`)
	if !regexp.MustCompile(b.String()).MatchString(strings.TrimRight(output, "\n") + "\n") {
		return fmt.Errorf("the document shows\n%s\nthe program says\n%s", sample, output)
	}
	return nil
}
