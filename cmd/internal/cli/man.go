//go:build man

package cli

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// WithMan adds the command man, which writes a manual page of every command into a folder: make man. Programs that are shipped are built
// without the tag and hold neither it nor what turns text into pages. The date of the pages is SOURCE_DATE_EPOCH: equal sources give equal pages.
func WithMan(root *cobra.Command) {
	root.AddCommand(&cobra.Command{
		Use: "man DIR", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root.DisableAutoGenTag = true
			pages(root)
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "plumbline " + readVersion(root.Name()).Version, Manual: "plumbline"}, args[0])
		},
	})
}

// pages makes the texts of a command and those below it what the writer of pages reads, Markdown: indented lines are tables of ours and stay
// as they stand, and nothing else is markup.
func pages(cmd *cobra.Command) {
	var lines []string
	for line := range strings.Lines(cmd.Long) {
		if strings.HasPrefix(line, "  ") {
			line = "    " + line
		} else {
			line = strings.NewReplacer("*", `\*`, "_", `\_`, "<", `\<`, "`", "\\`").Replace(line)
		}
		lines = append(lines, line)
	}
	cmd.Long = strings.Join(lines, "")
	for _, c := range cmd.Commands() {
		pages(c)
	}
}
