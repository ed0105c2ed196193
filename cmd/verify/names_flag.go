package main

import (
	"errors"
	"strings"

	"github.com/spf13/pflag"

	"plumbline/internal/format"
)

// maxConfig is the size of the largest file of --config, in bytes.
const maxConfig = 1 << 20

// readConfigText reads a file of --config as every file of a stranger is read.
func readConfigText(path string) ([]byte, error) {
	return format.ReadFile(path, maxConfig)
}

// list is a flag of names between commas, repeatable. pflag's own reads one record of CSV, and drops what follows a newline in silence.
type list struct{ names *[]string }

func listVar(f *pflag.FlagSet, names *[]string, name, usage string) { f.Var(list{names}, name, usage) }

func (l list) Set(text string) error {
	for _, name := range strings.Split(text, ",") {
		if name = strings.Trim(name, " "); strings.TrimSpace(name) == "" {
			return errors.New("an empty name")
		}
		*l.names = append(*l.names, name)
	}
	return nil
}

func (l list) Type() string { return "strings" }

func (l list) String() string {
	if l.names == nil {
		return ""
	}
	return strings.Join(*l.names, ",")
}

func (l list) Append(name string) error { return l.Set(name) }

func (l list) Replace(names []string) error {
	*l.names = append([]string(nil), names...)
	return nil
}

func (l list) GetSlice() []string { return *l.names }
