package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
)

// colorMode is the value of --color: auto colours a terminal.
type colorMode string

func (c *colorMode) String() string { return string(*c) }
func (c *colorMode) Type() string   { return "string" }
func (c *colorMode) Set(s string) error {
	if !slices.Contains(colorModes, s) {
		return fmt.Errorf("want one of %s", strings.Join(colorModes, ", "))
	}
	*c = colorMode(s)
	return nil
}

var colorModes = []string{"auto", "always", "never"}

// colored follows --color, then NO_COLOR, FORCE_COLOR and CLICOLOR_FORCE, else colours a terminal.
func colored(cmd *cobra.Command) bool {
	if f := cmd.Flag("color"); f != nil && f.Value.String() != "auto" {
		return f.Value.String() == "always"
	}
	if os.Getenv("NO_COLOR") != "" {
		return false
	}
	for _, name := range []string{"FORCE_COLOR", "CLICOLOR_FORCE"} {
		if v := os.Getenv(name); v != "" && v != "0" {
			return true
		}
	}
	return cli.Terminal(cmd.OutOrStdout()) && os.Getenv("TERM") != "dumb"
}

// utf8Locale reports whether the terminal takes more than ASCII: the first of LC_ALL, LC_CTYPE and LANG that is set says so.
func utf8Locale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(os.Getenv(name)); v != "" {
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}
