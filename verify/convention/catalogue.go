package convention

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"

	"plumbline/verify/check"
)

//go:embed profiles/ppo.txt
var ppoTable string

//go:embed profiles/group.txt
var groupTable string

//go:embed profiles/systems.txt
var systemsTable string

//go:embed profiles/derived.txt
var derivedTable string

//go:embed profiles/former.txt
var formerTable string

// profiles is a set of profiles in which every one says something of every option.
type profiles struct {
	list []*Profile
	at   map[string]*Profile
}

var catalogue = sync.OnceValue(func() *profiles {
	c, err := build(append(described(), former()...), []table{{"ppo.txt", ppoTable}, {"group.txt", groupTable}, {"systems.txt", systemsTable},
		{"derived.txt", derivedTable}, {"former.txt", formerTable}})
	if err != nil {
		panic("convention: " + err.Error())
	}
	return c
})

// table is the text of a table of values: a line that begins with "option" names the profiles of the columns, every other
// one an option and its values, one for each column or one for all. A # begins a comment, an empty line ends a table.
type table struct{ name, text string }

// build puts the values of the tables into the profiles. It refuses what no option takes, what is said twice, and options
// of which a profile without a base says nothing, but for those that few frameworks have.
func build(list []*Profile, tables []table) (*profiles, error) {
	c := &profiles{list: list, at: map[string]*Profile{}}
	for _, p := range list {
		if c.at[p.Name] != nil {
			return nil, fmt.Errorf("profile %s is described twice", p.Name)
		}
		p.own = map[string]Setting{}
		c.at[p.Name] = p
	}
	for _, t := range tables {
		if err := c.read(t); err != nil {
			return nil, err
		}
	}
	for i, p := range list {
		if err := c.complete(p, list[:i]); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *profiles) read(t table) error {
	var columns []*Profile
	for n, line := range strings.Split(t.text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		cells := strings.Fields(line)
		if len(cells) == 0 {
			continue
		}
		name, cells := cells[0], cells[1:]
		where := func(err error) error { return fmt.Errorf("%s:%d: %w", t.name, n+1, err) }
		if name == "option" {
			columns = nil
			for _, cell := range cells {
				p := c.at[cell]
				if p == nil {
					return where(fmt.Errorf("profile %s is not described", cell))
				}
				columns = append(columns, p)
			}
			continue
		}
		option, err := Find(name)
		if err != nil {
			return where(err)
		}
		if len(cells) != 1 && len(cells) != len(columns) {
			return where(fmt.Errorf("%s has %d values for %d profiles", name, len(cells), len(columns)))
		}
		for i, p := range columns {
			cell := cells[min(i, len(cells)-1)]
			if cell == "." && p.Base != "" {
				continue
			}
			s, err := option.setting(cell)
			if err != nil {
				return where(err)
			}
			if _, twice := p.own[name]; twice {
				return where(fmt.Errorf("%s of %s is set twice", name, p.Name))
			}
			s.Origin = p.Name
			p.own[name] = s
		}
	}
	return nil
}

// setting reads a cell: a value, with ! before it if the release was run, or ? and the values that it may be.
func (o *Option) setting(cell string) (Setting, error) {
	s := Setting{Option: o}
	if among, several := strings.CutPrefix(cell, "?"); several && among != "" {
		for _, text := range strings.Split(among, "|") {
			v, err := o.Parse(text)
			if err == nil && !v.Known() {
				err = fmt.Errorf("%s: %q among alternatives", o.Name, text)
			}
			if err != nil {
				return s, err
			}
			s.Among = append(s.Among, v)
		}
		if len(s.Among) < 2 {
			return s, fmt.Errorf("%s: %q is one alternative, want two or more", o.Name, cell)
		}
		return s, nil
	}
	text, executed := strings.CutPrefix(cell, "!")
	v, err := o.Parse(text)
	if executed {
		s.Evidence = Executed
		if err == nil && !v.Known() {
			err = fmt.Errorf("%s: executed, and yet %q", o.Name, text)
		}
	}
	s.Value = v
	return s, err
}

// complete fills p.all, from its base where it says nothing itself. The base must be one of earlier.
func (c *profiles) complete(p *Profile, earlier []*Profile) error {
	var base *Profile
	if p.Base != "" {
		var names []string
		for _, e := range earlier {
			names = append(names, e.Name)
			if e.Name == p.Base {
				base = e
			}
		}
		if base == nil {
			return fmt.Errorf("%s is based on %s, which is none of the profiles before it; did you mean %q?", p.Name, p.Base, check.Nearest(p.Base, names))
		}
	}
	p.all = nil
	for i, o := range index().list {
		s, ok := p.own[o.Name]
		switch {
		case ok:
		case base != nil:
			s = base.all[i]
		case index().few[o.Name]:
			s = Setting{Option: o, Value: Value{kind: NotApplicable}, Origin: p.Name}
		default:
			return fmt.Errorf("%s says nothing of %s", p.Name, o.Name)
		}
		p.all = append(p.all, s)
	}
	return nil
}
