package main

import (
	"fmt"
	"io"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// inputs returns the names of what a dump may hold beside options: facts of the run, keys of the metadata and tensors.
func inputs() []string {
	names := convention.FactNames()
	for _, k := range dump.MetadataKeys {
		names = append(names, k[0])
	}
	names = append(names, dump.TensorNames()...)
	slices.Sort(names)
	return slices.Compact(names)
}

// printInput prints what a fact of a run, a key of the metadata or a tensor of that name is; it reports whether there is one.
func printInput(w io.Writer, name string) bool {
	found := false
	say := func(kind, doc, declare string) {
		found = true
		fmt.Fprintf(w, "%s  %s: %s\n", name, kind, doc)
		line := fields(w)
		line("declare", declare)
		fmt.Fprintln(w)
	}
	for _, k := range dump.MetadataKeys {
		if k[0] == name {
			say("a key of the metadata of a dump", k[1], "in the metadata of every file")
			return true
		}
	}
	if doc := convention.FactDoc(name); doc != "" {
		say("a fact of the run", doc, "verify dump RUN --set "+name+"=VALUE, or among the options of the dump")
	}
	if doc := dump.Meaning(name); doc != "" {
		say("a tensor of a dump", doc, "in every file; verify explain dump says in which shape")
	}
	return found
}

// printNative prints what a framework's own name of an option means, of every framework that has it; it reports whether there is one.
func printNative(w io.Writer, name string) bool {
	all := convention.NativeMeanings(name)
	for _, m := range all {
		fmt.Fprintf(w, "%s  an option of %s\n", m.Name, m.Table)
		for _, v := range m.Values {
			fmt.Fprintf(w, "  %-24s → %s\n", v[0], v[1])
		}
		fmt.Fprintln(w)
	}
	return len(all) > 0
}

// printOptions prints the options, with the values that they may have.
func printOptions(w io.Writer) {
	for _, o := range convention.Options() {
		fmt.Fprintf(w, "%-26s %s\n%26s %s\n", o.Name, o.Legal(), "", o.Doc)
	}
}
