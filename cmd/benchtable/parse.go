package main

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// runs are the lines of one benchmark: for each unit the values in the order of lines.
type runs struct {
	name   string
	values map[string][]float64
}

// results are benchmarks in the order of their first line.
type results struct {
	list []*runs
	head []string // goos, goarch, pkg, cpu: the lines before
}

// processors is the suffix of a name that says on how many of them it ran.
var processors = regexp.MustCompile(`-\d+$`)

// parse reads the output of go test -bench. Lines of another form are not its business; a benchmark line that breaks off is an error.
func parse(r io.Reader) (*results, error) {
	res, byName := &results{}, map[string]*runs{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		for _, key := range []string{"goos:", "goarch:", "cpu:"} {
			if strings.HasPrefix(line, key) && !slices.Contains(res.head, line) {
				res.head = append(res.head, line)
			}
		}
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(line, "Benchmark") {
			continue
		}
		if _, err := strconv.Atoi(fields[1]); err != nil {
			continue
		}
		if len(fields)%2 != 0 {
			return nil, fmt.Errorf("line %d: a value has no unit: %s", n, line)
		}
		name := processors.ReplaceAllString(strings.TrimPrefix(fields[0], "Benchmark"), "")
		b := byName[name]
		if b == nil {
			b = &runs{name: name, values: map[string][]float64{}}
			byName[name] = b
			res.list = append(res.list, b)
		}
		for i := 2; i < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("line %d: %q is no number", n, fields[i])
			}
			b.values[fields[i+1]] = append(b.values[fields[i+1]], v)
		}
	}
	return res, lines.Err()
}

// units returns the units of all benchmarks, the usual ones first.
func (r *results) units() []string {
	var all []string
	for _, b := range r.list {
		for u := range b.values {
			if !slices.Contains(all, u) {
				all = append(all, u)
			}
		}
	}
	order := []string{"ns/op", "Gop/s", "Gbyte/s", "%probe", "B/op", "allocs/op"}
	slices.SortFunc(all, func(a, b string) int {
		ia, ib := slices.Index(order, a), slices.Index(order, b)
		if ia < 0 {
			ia = len(order)
		}
		if ib < 0 {
			ib = len(order)
		}
		if ia != ib {
			return ia - ib
		}
		return strings.Compare(a, b)
	})
	return all
}

func (r *results) find(name string) *runs {
	for _, b := range r.list {
		if b.name == name {
			return b
		}
	}
	return nil
}
