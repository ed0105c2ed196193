package main

import (
	"bufio"
	"bytes"
	"embed"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"strings"

	"plumbline/internal/config"
)

//go:embed configs
var configs embed.FS

// openConfig reads a configuration: a bare name is that of an embedded one, whatever lies in the current folder; else a file, or if
// there is none an embedded one by its name with or without configs/ and .yaml.
func openConfig(name string) ([]byte, error) {
	if path.Ext(name) == "" && filepath.Base(name) == name {
		if embedded, err := configs.ReadFile("configs/" + name + ".yaml"); err == nil {
			return embedded, nil
		}
	}
	text, err := config.Bytes(name)
	if err == nil || !os.IsNotExist(err) {
		return text, err
	}
	base := path.Base(filepath.ToSlash(name))
	if path.Ext(base) == "" {
		base += ".yaml"
	}
	if embedded, e := configs.ReadFile("configs/" + base); e == nil {
		return embedded, nil
	}
	return nil, err
}

// configNames are the names of the embedded configurations.
func configNames() (names []string) {
	entries, err := configs.ReadDir("configs")
	if err != nil {
		panic("train: " + err.Error()) // they are part of the program
	}
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

// listConfigs prints the embedded configurations, each with the comment that it begins with.
func listConfigs(out io.Writer) error {
	for _, name := range configNames() {
		text, err := configs.ReadFile("configs/" + name + ".yaml")
		if err != nil {
			return err
		}
		var about []string
		for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan() && strings.HasPrefix(lines.Text(), "#"); {
			about = append(about, strings.TrimSpace(lines.Text()[1:]))
		}
		fmt.Fprintf(out, "%-14s %s\n", name, strings.Join(about, " "))
	}
	return nil
}

func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}
