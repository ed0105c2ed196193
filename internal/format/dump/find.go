package dump

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format"
)

// ErrNothing says that a folder is there, but no dump is in it.
var ErrNothing = errors.New("no .safetensors and no .npz file")

// find returns the dumps that the patterns name, each once, and how many other files there are. A pattern is a file, a
// folder, whose files are taken but not its folders, unless it has no files and folders of runs, of which the newest is taken, or a glob of files and folders. Hidden files must be named.
func find(patterns []string) (found []location, ignored int, err error) {
	seen := map[string]bool{}
	add := func(l location) {
		if key := filepath.Clean(l.path()); !seen[key] {
			seen[key] = true
			found = append(found, l)
		}
	}
	for _, pattern := range patterns {
		paths, glob := []string{pattern}, false
		if !exists(pattern) && strings.ContainsAny(pattern, "*?[") {
			glob = true
			if paths, err = filepath.Glob(pattern); err != nil {
				return nil, 0, fmt.Errorf("%s: %w", pattern, err)
			}
			if len(paths) == 0 {
				return nil, 0, &fs.PathError{Op: "glob", Path: pattern, Err: fs.ErrNotExist}
			}
		}
		before := len(found)
		for _, path := range paths {
			info, err := os.Stat(path)
			switch {
			case glob && filepath.Base(path)[0] == '.': // as a shell has it
			case err != nil:
				return nil, 0, err
			case info.IsDir():
				names, folders, others, err := inFolder(path)
				if err != nil {
					return nil, 0, err
				}
				ignored += others
				runs := runFolders(path, folders)
				switch {
				case len(names) > 0 && len(runs) > 0 && !glob:
					return nil, 0, format.Malformed(path, "", "holds dumps of its own and %d folders of runs: name one, such as %s, or the files", len(runs), filepath.Join(path, runs[len(runs)-1]))
				case len(names) == 0 && len(runs) > 0:
					path = filepath.Join(path, runs[len(runs)-1]) // the newest, by its name
					if names, folders, others, err = inFolder(path); err != nil {
						return nil, 0, err
					}
				}
				for _, name := range names {
					add(location{path, name})
				}
				if len(names) == 0 && !glob {
					err := fmt.Errorf("%s: %w among the %d files of the folder", path, ErrNothing, others)
					if len(folders) > 0 {
						err = fmt.Errorf("%w; folders in it are not looked into: name one of the %d, such as %s", err, len(folders), filepath.Join(path, folders[0]))
					}
					return nil, 0, err
				}
			case isDump(path):
				add(location{"", path})
			case glob:
				ignored++
			default:
				return nil, 0, notDump(path)
			}
		}
		if glob && len(found) == before && !slices.ContainsFunc(paths, isDump) {
			return nil, 0, fmt.Errorf("%s: %w among the %d that match", pattern, ErrNothing, len(paths))
		}
	}
	return found, ignored, nil
}

// runPrefix begins the names of the folders that the hooks make for each run; what follows is the time of its first dump.
const runPrefix = "run-"

// runFolders returns those of the folders in a folder that are of runs and hold dumps, the oldest first.
func runFolders(path string, folders []string) (runs []string) {
	for _, name := range folders {
		if !strings.HasPrefix(name, runPrefix) {
			continue
		}
		if names, _, _, err := inFolder(filepath.Join(path, name)); err == nil && len(names) > 0 {
			runs = append(runs, name)
		}
	}
	return runs
}

// inFolder returns the names of the dumps and of the folders in a folder, sorted, and the number of other files. Metadata beside
// a dump and what is hidden are none of these.
func inFolder(path string) (names, folders []string, others int, err error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, nil, 0, err
	}
	beside := map[string]bool{}
	for _, e := range entries {
		if name := e.Name(); isDump(name) && !e.IsDir() && name[0] != '.' {
			names = append(names, name)
			beside[location{"", name}.beside().name] = true
		}
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case name[0] == '.' || beside[name]:
		case e.IsDir():
			folders = append(folders, name)
		case !isDump(name):
			others++
		}
	}
	return names, folders, others, nil
}

func isDump(path string) bool {
	ext := strings.ToLower(filepath.Ext(path))
	return ext == extSafetensors || ext == extNPZ
}

func notDump(path string) error {
	switch ext := strings.ToLower(filepath.Ext(path)); ext {
	case ".pt", ".pth", ".bin", ".pkl", ".pickle":
		return format.Malformed(path, "", "refused: a pickle, which is never loaded; a dump is a .safetensors or .npz file")
	case ".npy":
		return format.Malformed(path, "", "holds one array; a dump is a .safetensors or .npz file")
	}
	return format.Malformed(path, "", "a dump is a .safetensors or .npz file, by its name")
}
