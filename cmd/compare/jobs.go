package main

import (
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// jobs returns the command lines that judge everything below golden: every folder by the commands that read what lies in it.
func jobs(root string) ([][]string, error) {
	files := map[string][]string{}
	err := filepath.WalkDir(filepath.Join(root, "golden"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name == filepath.Join("golden", "gen") { // the producers
				return fs.SkipDir
			}
			return nil
		}
		files[filepath.Dir(name)] = append(files[filepath.Dir(name)], filepath.Base(name))
		return nil
	})
	if err != nil {
		return nil, err
	}
	folders := slices.Sorted(maps.Keys(files))
	list := [][]string{{"golden"}, {"museum"}, {"demo"}, {"list"}, {"explain", "--bugs"}, {"profiles"}}
	dumped := map[string][]string{}
	for _, dir := range folders {
		has := func(patterns ...string) bool {
			return slices.ContainsFunc(files[dir], func(name string) bool {
				return slices.ContainsFunc(patterns, func(p string) bool { ok, _ := filepath.Match(p, name); return ok })
			})
		}
		if has("step_*.safetensors", "step_*.npz") {
			list = append(list, []string{"dump", dir}, []string{"diff", dir})
			dumped[filepath.Dir(dir)] = append(dumped[filepath.Dir(dir)], dir)
		}
		if has("config.json", "adapter_config.json", "*.index.json") {
			list = append(list, []string{"checkpoint", dir})
		}
		if has("metrics.jsonl", "*tfevents*", "trainer_state.json", "console.*", "history.*") {
			list = append(list, []string{"log", dir})
		}
		if dir == filepath.Join("golden", "projection") {
			for _, name := range files[dir] {
				switch path := filepath.Join(dir, name); {
				case strings.HasPrefix(name, "q"):
					list = append(list, []string{"projection", "--basis", path})
				case strings.HasPrefix(name, "g"):
					list = append(list, []string{"projection", "--basis", filepath.Join(dir, "q.npy"), "--grad", path})
				}
			}
		}
	}
	for _, runs := range dumped { // runs that lie side by side: a bug and its cure, or one experiment twice
		for _, run := range runs[1:] {
			list = append(list, []string{"diff", runs[0], run})
		}
	}
	slices.SortFunc(list, func(a, b []string) int { return strings.Compare(strings.Join(a, " "), strings.Join(b, " ")) })
	return list, nil
}
