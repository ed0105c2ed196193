package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"plumbline/internal/format"
)

// presentation names the flags that change how a run is told and not what it finds.
var presentation = map[string]bool{"format": true, "output": true, "select": true, "ignore": true, "verbose": true, "quiet": true, "plot": true, "orthonormalize": true, "baseline": true, "steps": true, "color": true}

// repeatCommand returns the command line of cmd without the flags of presentation, quoted for a shell.
func repeatCommand(cmd *cobra.Command, args ...string) string {
	parts := strings.Fields(cmd.CommandPath())
	for _, a := range args {
		parts = append(parts, format.ShellQuote(a))
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if presentation[f.Name] {
			return
		}
		switch v := f.Value.(type) {
		case pflag.SliceValue:
			for _, x := range v.GetSlice() {
				parts = append(parts, "--"+f.Name, format.ShellQuote(x))
			}
		default:
			if f.Value.Type() == "bool" {
				if f.Value.String() == "true" {
					parts = append(parts, "--"+f.Name)
				} else {
					parts = append(parts, "--"+f.Name+"=false")
				}
				return
			}
			parts = append(parts, "--"+f.Name, format.ShellQuote(f.Value.String()))
		}
	})
	return strings.Join(parts, " ")
}

// parseBytes reads a size such as 512MB (10⁶), 2GiB (2³⁰) or a plain number of bytes.
func parseBytes(s string) (int64, error) {
	units := []struct {
		name string
		size float64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1}}
	for _, u := range units {
		text, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil || !(v > 0) || v*u.size > 1<<62 {
			break
		}
		return int64(v * u.size), nil
	}
	return 0, fmt.Errorf("%q is no size; write 512MB, 2GiB or bytes", s)
}
