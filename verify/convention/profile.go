package convention

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"plumbline/verify/check"
)

// Evidence is how the value of an option in a profile is known.
type Evidence uint8

const (
	Read     Evidence = iota // in the source, or in its documentation
	Executed                 // running the release gave the numbers that this value gives; a default was still read
)

func (e Evidence) String() string {
	if e == Executed {
		return "executed"
	}
	return "read"
}

// Setting is what a profile says of one option.
type Setting struct {
	Option   *Option
	Value    Value
	Among    []Value // where the Value is unknown: it is one of these, depending on how the framework is configured
	Evidence Evidence
	Origin   string // the profile in which it stands: this one, or one that it is based on
}

// String returns the value as the table has it: "?" with what it may be.
func (s Setting) String() string {
	if len(s.Among) == 0 {
		return s.Value.String()
	}
	parts := make([]string, len(s.Among))
	for i, v := range s.Among {
		parts[i] = v.String()
	}
	return "? (" + strings.Join(parts, " or ") + ")"
}

// Profile is a named set of option values. It says something of every option.
type Profile struct {
	Name      string // "trl-grpo@1.16"
	Framework string
	Release   string // the version or commit that was read or run
	Algorithm string
	Base      string // the profile whose values hold where this one says nothing; "" if none
	Notes     []string

	// Former is a release that later ones have given up the meaning of. It is declared by its name or by the version that files
	// say; what nobody declares is not searched for in it.
	Former bool

	own map[string]Setting
	all []Setting // of every option, in the order of Options
}

// Settings returns what p says of every option, in the order of [Options].
func (p *Profile) Settings() []Setting { return slices.Clone(p.all) }

// Setting returns what p says of the named option, or an error that names the nearest option.
func (p *Profile) Setting(option string) (Setting, error) {
	if _, err := Find(option); err != nil {
		return Setting{}, err
	}
	return p.all[index().at[option]], nil
}

// Value returns the value of an option, unknown where it is one of several. It panics if there is no such option.
func (p *Profile) Value(option string) Value {
	s, err := p.Setting(option)
	if err != nil {
		panic("convention: " + err.Error())
	}
	return s.Value
}

// Allows reports whether v may be the value of the option under p: it is the value, or p does not know the value and does
// not exclude v.
func (p *Profile) Allows(option string, v Value) bool {
	s, err := p.Setting(option)
	if err != nil || s.Value.Known() || s.Value.Kind() == NotApplicable {
		return err == nil && s.Value == v
	}
	return len(s.Among) == 0 || slices.Contains(s.Among, v)
}

// Difference is an option of which two profiles say different things.
type Difference struct{ A, B Setting }

// Diff returns the options whose values differ between a and b, in the order of [Options].
func Diff(a, b *Profile) []Difference {
	var diff []Difference
	for i, s := range a.all {
		if t := b.all[i]; s.Value != t.Value || !slices.Equal(s.Among, t.Among) {
			diff = append(diff, Difference{s, t})
		}
	}
	return diff
}

// Profiles returns the profiles that are searched, all but the former releases: PPO, then group advantages, then the systems of this
// repository.
func Profiles() []*Profile {
	return slices.DeleteFunc(AllProfiles(), func(p *Profile) bool { return p.Former })
}

// AllProfiles returns the profiles in the same order, and the former releases after them, the oldest of each framework first.
func AllProfiles() []*Profile { return slices.Clone(catalogue().list) }

// ProfileNames returns the names of all profiles, former ones too.
func ProfileNames() []string {
	var names []string
	for _, p := range catalogue().list {
		names = append(names, p.Name)
	}
	return names
}

// Lookup returns the profile of that name, "trl-grpo@1.16". A version that is not listed, or none, gives the newest one
// that is not newer, and a warning that names both; versions that are commits have no order. The error names the nearest
// profile.
func Lookup(name string) (p *Profile, warning string, err error) { return catalogue().lookup(name) }

// Named reports whether there is a profile of exactly that name.
func Named(name string) bool { return catalogue().at[name] != nil }

func (c *profiles) lookup(name string) (*Profile, string, error) {
	if p := c.at[name]; p != nil {
		return p, "", nil
	}
	family, version, versioned := strings.Cut(name, "@")
	var best *Profile
	var names []string
	known := false
	for _, p := range c.list {
		names = append(names, p.Name)
		f, v, _ := strings.Cut(p.Name, "@")
		if f != family {
			continue
		}
		known = true
		if versioned && strings.TrimPrefix(version, "v") == p.Release {
			return p, "", nil
		}
		if versioned && !notNewer(v, version) {
			continue
		}
		if best == nil || notNewer(versionOf(best), v) {
			best = p
		}
	}
	switch {
	case best != nil && !versioned:
		return best, fmt.Sprintf("%s names no version; taking %s, the newest known", name, best.Name), nil
	case best != nil:
		return best, fmt.Sprintf("there is no profile %.64s; taking %s, the nearest older one", name, best.Name), nil
	case known:
		var of []string
		for _, n := range names {
			if strings.HasPrefix(n, family+"@") {
				of = append(of, n)
			}
		}
		return nil, "", fmt.Errorf("no profile %.64q, and none of an older version; there is %s", name, strings.Join(of, ", "))
	}
	return nil, "", fmt.Errorf("no profile %.64q; did you mean %q? (verify profiles prints all)", name, check.Nearest(clipped(name), names))
}

func versionOf(p *Profile) string {
	_, v, _ := strings.Cut(p.Name, "@")
	return v
}

// notNewer reports whether version a is older than b, or the same. Versions that are not numbers with dots, such as
// commits, compare with nothing.
func notNewer(a, b string) bool {
	x, preA, okA := release(a)
	y, preB, okB := release(b)
	if !okA || !okB {
		return false
	}
	for len(x) < len(y) {
		x = append(x, 0)
	}
	for len(y) < len(x) {
		y = append(y, 0)
	}
	if c := slices.Compare(x, y); c != 0 {
		return c < 0
	}
	return preA || !preB
}

// release returns the components of a version, and whether it comes before the release of that number (dev, rc, a, b).
func release(s string) (parts []int, pre, ok bool) {
	s, _, _ = strings.Cut(strings.TrimPrefix(s, "v"), "+")
	for _, part := range strings.Split(s, ".") {
		rest := strings.TrimLeft(part, "0123456789")
		if digits := part[:len(part)-len(rest)]; digits != "" {
			n, err := strconv.Atoi(digits)
			if err != nil {
				return nil, false, false
			}
			parts = append(parts, n)
		}
		switch strings.TrimLeft(strings.TrimRight(rest, "0123456789"), "-_") {
		case "":
			if rest == part {
				return nil, false, false
			}
		case "dev", "rc", "a", "b":
			return parts, true, len(parts) > 0
		case "post":
			return parts, false, len(parts) > 0
		default:
			return nil, false, false
		}
	}
	return parts, false, true
}
