package dump

import (
	"fmt"

	"plumbline/internal/format"
)

// origins holds what the files of a run say they are of.
type origins struct {
	said   map[string]string // by key, the first value
	by     map[string]string // the file that said it
	differ []string          // a line for each further value
	seen   map[string]bool
}

// add takes down what a file says. Two names of runs are an error: their steps have one numbering, and would be judged as one run.
func (o *origins) add(m *Meta, path string) error {
	if o.said == nil {
		o.said, o.by, o.seen = map[string]string{}, map[string]string{}, map[string]bool{}
	}
	for _, c := range [][2]string{{"run", m.Run}, {"framework", m.Framework}, {"version", m.Version}, {"algorithm", m.Algorithm}, {"profile", m.Profile}} {
		key, value := c[0], c[1]
		old, said := o.said[key]
		switch {
		case !said:
			o.said[key], o.by[key] = value, path
		case old == value:
		case key == "run" && old != "" && value != "":
			return format.Malformed(path, "key run", "is %.64q, but %.64q in %s: files of two runs are not judged as one; name those of one run", value, old, o.by[key])
		case !o.seen[key+value] && len(o.differ) < maxMissing:
			o.seen[key+value] = true
			o.differ = append(o.differ, fmt.Sprintf("%s is %s in %s and %s in %s", key, quoted(old), o.by[key], quoted(value), path))
		}
	}
	return nil
}

func quoted(s string) string {
	if s == "" {
		return "not said"
	}
	return fmt.Sprintf("%.64q", s)
}
