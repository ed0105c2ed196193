package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"plumbline/internal/config"
	"plumbline/internal/format"
	"plumbline/verify/convention"
	"plumbline/verify/report"
)

// configFamilies are the frameworks whose configurations are read, and how their programs are started.
var configFamilies = []struct{ name, module string }{{"trl", "trl"}, {"verl", "verl"}, {"openrlhf", "openrlhf"}}

// readConfigs reads the files of --config, of which a later one is stronger, as the options of one configuration, and notes
// in the report what it read. The profile helps to tell the trainers of a framework apart.
func readConfigs(files []string, profile string, r *report.Report) (*convention.Declared, error) {
	all := &config.File{Tree: map[string]any{}}
	framework := ""
	for _, file := range files {
		c, named, err := readConfig(file)
		if err != nil {
			return nil, err
		}
		if named != "" {
			framework = named
		}
		all.Merge(c)
	}
	shown := strings.Join(files, " and ")
	usage := func(err error) error { return usageError{fmt.Sprintf("--config %s: %v", shown, err)} }
	if v, is := all.Tree["framework"]; is {
		if framework, is = v.(string); !is {
			return nil, usage(errors.New("framework names no framework"))
		}
	}
	if framework == "" {
		var err error
		if framework, err = frameworkOf(all, profile); err != nil {
			return nil, usage(err)
		}
	}
	withFlagsLeftOut(all, framework)
	if framework != "" {
		all.Tree["framework"] = framework
	}
	options, framework, err := convention.OptionsOf(all.Tree)
	if err != nil {
		return nil, usage(err)
	}
	var names []string
	for _, file := range files {
		names = append(names, filepath.Base(file))
	}
	d, err := convention.Declare(framework, "", options, strings.Join(names, ", "))
	if err != nil {
		return nil, usage(err)
	}
	aboutConfig(r, strings.Join(names, ", "), framework, d, all.Unread)
	return d, nil
}

// readConfig reads one file: options as plumbline writes them, or the configuration of a trainer. Only a path that cannot be
// opened keeps its own error.
func readConfig(file string) (*config.File, string, error) {
	f, err := format.Open(file)
	if err != nil {
		return nil, "", err
	}
	f.Close()
	usage := func(err error) error {
		if errors.As(err, new(*fs.PathError)) || errors.As(err, new(syscall.Errno)) {
			return err
		}
		return usageError{"--config " + err.Error()}
	}
	if ext := strings.ToLower(filepath.Ext(file)); ext != ".yaml" && ext != ".yml" && ext != ".json" && ext != ".sh" {
		options, framework, err := convention.ReadOptions(file)
		if err == nil {
			c := &config.File{Tree: map[string]any{}}
			for _, o := range options {
				c.Tree[o.Name] = o.Value
			}
			return c, framework, nil
		}
		c, other := config.Read(file)
		if other != nil || len(c.Tree) == 0 {
			return nil, "", usage(err)
		}
		return c, "", nil
	}
	c, err := config.Read(file)
	if err != nil {
		return nil, "", usage(err)
	}
	return c, "", nil
}

// frameworkOf returns whose names the configuration has: that of the program it starts, else the one that knows most of them;
// "" if all are plumbline's own.
func frameworkOf(c *config.File, profile string) (string, error) {
	names := leaves(nil, "", c.Tree)
	for i, name := range names {
		names[i] = strings.TrimPrefix(name, "options.")
	}
	if len(names) == 0 {
		return "", fmt.Errorf("no option in it")
	}
	own := append(convention.Names(), convention.FactNames()...)
	if !slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(own, n) }) {
		return "", nil
	}
	family := ""
	for _, f := range configFamilies {
		words := strings.FieldsFunc(c.Program, func(r rune) bool { return strings.ContainsRune(" ./-_", r) })
		if slices.Contains(words, f.module) {
			family = f.name
		}
	}
	if family == "" {
		most, second := 0, 0
		for _, f := range configFamilies {
			switch n := knownTo(f.name, names); {
			case n > most:
				family, most, second = f.name, n, most
			case n > second:
				second = n
			}
		}
		if most == 0 || most == second {
			named := strings.Split(profile, "@")[0]
			if !slices.ContainsFunc(configFamilies, func(f struct{ name, module string }) bool { return strings.HasPrefix(named, f.name+"-") }) {
				return "", fmt.Errorf("its names (%s) do not tell whether TRL, verl or OpenRLHF reads it; say --profile, or add framework", some(names, 5))
			}
			family, _, _ = strings.Cut(named, "-")
		}
	}
	if strings.HasPrefix(profile, family+"-") { // trl-grpo: which trainer
		return strings.Split(profile, "@")[0], nil
	}
	if family == "trl" {
		for _, algorithm := range []string{"grpo", "rloo", "ppo"} {
			if strings.Contains(c.Program, algorithm) {
				return family + "-" + algorithm, nil
			}
		}
	}
	return family, nil
}

// leaves appends the names of the values of a tree, with dots.
func leaves(names []string, prefix string, tree map[string]any) []string {
	for _, k := range slices.Sorted(maps.Keys(tree)) {
		if inner, is := tree[k].(map[string]any); is && len(inner) > 0 {
			names = leaves(names, prefix+k+".", inner)
		} else {
			names = append(names, prefix+k)
		}
	}
	return names
}

// knownTo counts the names that a framework has, in full or without their first parts, half those of which it only knows what
// they lie below.
func knownTo(framework string, names []string) (n int) {
	forms := map[string]bool{}
	for _, name := range convention.KnownNative(framework) {
		for form := name; ; {
			forms[form] = true
			_, rest, dotted := strings.Cut(form, ".")
			if !dotted || rest == "*" {
				break
			}
			form = rest
		}
	}
	asked := 0
	for _, name := range names {
		if forms[name] {
			n += 2
			continue
		}
		below := false
		for i := range len(name) {
			below = below || name[i] == '.' && forms[name[:i]+".*"]
		}
		if below {
			n++
		} else if asked++; asked <= maxAsked && isKnown(framework, name) {
			n += 2
		}
	}
	return n
}

// maxAsked bounds how many names are looked up one by one: those of older releases, which KnownNative does not list.
const maxAsked = 100

// isKnown reports whether the framework has the name; a value that it cannot have shows it too.
func isKnown(framework, name string) bool {
	d, err := convention.Declare(framework, "", []convention.NameValue{{Name: name}}, "")
	return err != nil || len(d.Unknown) == 0
}

// aboutConfig says with whose names a configuration was read, what it does not hold, and what in it decides nothing. What it
// declares and what nobody knows is said by the judgement.
func aboutConfig(r *report.Report, file, framework string, d *convention.Declared, unread []config.Unread) {
	names := cmp.Or(d.Table, "plumbline's own options")
	r.Lines = append(r.Lines, fmt.Sprintf("configuration %s, read with the names of %s", file, names))
	ignored := func(name string) bool {
		one, err := convention.Declare(framework, "", []convention.NameValue{{Name: name, Value: ""}}, "")
		return err == nil && slices.Contains(one.Ignored, name)
	}
	var missing []string
	for i, u := range unread {
		if i >= 200 || u.Name == "defaults" || !ignored(u.Name) {
			missing = append(missing, fmt.Sprintf("%.96s (%.64s)", u.Name, u.Why))
		}
	}
	for _, s := range []report.Section{{Title: "names of the configuration whose value it does not hold", Items: missing},
		{Title: "names of the configuration that decide nothing a check looks at", Items: d.Ignored}} {
		if len(s.Items) > 0 {
			r.Lists = append(r.Lists, s)
		}
	}
}

// some joins the first words.
func some(words []string, most int) string {
	if len(words) <= most {
		return strings.Join(words, ", ")
	}
	return strings.Join(words[:most], ", ") + ", …"
}
