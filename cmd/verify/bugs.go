package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"plumbline/verify/bug"
)

// bugPage is how docs/bugs.md begins.
const bugPage = `# The bugs that verify knows

What each bug is, the code before and after, what it does to training, how a dump shows it, and where it was seen. The page is printed
from the registry that the findings take their words from:

` + "```sh\nverify explain --bugs > docs/bugs.md\n```\n"

// prose keeps the characters of a text from being read as Markdown or HTML.
var prose = strings.NewReplacer("<", "&lt;", "*", `\*`, "_", `\_`, "|", `\|`)

// printBugs prints the page of all bugs, a section for each, in the order of the pipeline.
func printBugs(w io.Writer) error {
	out := bufio.NewWriter(w)
	out.WriteString(bugPage)
	for _, b := range bugs() {
		fmt.Fprintf(out, "\n## %s\n\n%s.\n\n", b.ID, prose.Replace(capital(b.Title)))
		item := func(name, text string) {
			if text != "" {
				fmt.Fprintf(out, "- %s: %s\n", name, text)
			}
		}
		item("cause", prose.Replace(b.Cause))
		item("effect on training", prose.Replace(b.Effect))
		item("fix", prose.Replace(b.Fix))
		item("a dump shows it in", strings.Join(quoted(b.checks), ", "))
		item("a dump shows it", b.Shows)
		item("the value of an option", strings.Join(quoted(b.options), ", "))
		for _, row := range b.Rows {
			c := bug.FindCode(row)
			from := c.Links()
			if len(from) == 0 {
				from = c.Upstream
			}
			item("seen as "+row, strings.Join(append([]string{prose.Replace(c.Text)}, from...), "; "))
		}
		if b.Before != "" || b.After != "" {
			fmt.Fprintf(out, "\n```python\n# before\n%s\n# after\n%s\n```\n", b.Before, b.After)
		}
	}
	return out.Flush()
}

// capital begins a sentence. A formula keeps its letters: β and Γ are not Β and γ.
func capital(text string) string {
	if text[0] < 'a' || text[0] > 'z' {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// quoted returns names as code.
func quoted(names []string) []string {
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = "`" + n + "`"
	}
	return list
}
