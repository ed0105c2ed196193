package main

import (
	"regexp"
	"strings"

	"plumbline/verify/check"
	"plumbline/verify/runlog"
)

// placeOptions gives every result that an option of a configuration file explains the line of the file that sets it: the first of these
// options, in the last file that has it, as the files are read. The name is that of the file, in full or without its first parts.
func placeOptions(results []check.Result, files []string) {
	if len(files) == 0 {
		return
	}
	type source struct {
		path  string
		text  []string
		lines map[string]int
	}
	var read []source
	for _, path := range files {
		data, err := readConfigText(path)
		if err != nil { // what is larger was refused or has no line that anybody looks for
			continue
		}
		_, lines := runlog.ParseConfig(string(data))
		read = append(read, source{path, strings.Split(string(data), "\n"), lines})
	}
	find := func(name string) *check.FileLine {
		for k := len(read) - 1; k >= 0; k-- {
			s := &read[k]
			at := s.lines[name]
			for full, line := range s.lines {
				if at == 0 && (strings.HasSuffix(full, "."+name) || strings.HasSuffix(name, "."+full)) {
					at = line
				}
			}
			if at == 0 { // several names in a line
				last := name[strings.LastIndex(name, ".")+1:]
				word := regexp.MustCompile(`(^|[^\w])` + regexp.QuoteMeta(last) + `["']?\s*[:=]`)
				for i, line := range s.text {
					if word.MatchString(line) {
						at = i + 1
						break
					}
				}
			}
			if at > 0 {
				return &check.FileLine{Path: s.path, Number: at}
			}
		}
		return nil
	}
	for i := range results {
		if len(results[i].Explanations) == 0 || results[i].At != nil {
			continue
		}
		for _, o := range results[i].Explanations[0].Options {
			name, _, given := strings.Cut(o.Origin, "=")
			if !given || !strings.HasSuffix(o.Origin, ")") {
				continue
			}
			if at := find(strings.TrimSpace(name)); at != nil {
				results[i].At = at
				break
			}
		}
	}
}
