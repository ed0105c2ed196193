package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"plumbline/internal/words"
)

// Settings are the keys that a program of ours understands, each bound to a variable that holds its default. Layers are put over
// the defaults one after the other: a file with the files that it names under defaults, the environment, key=value overrides. Then
// Resolve replaces ${key} by the value of that key and sets the variables.
//
// What is written must be what is meant, in the type of its key: an integer is not 1.5 and not 010, a number not 1_000, a boolean
// not yes, text not 3 without quotes. An unknown key is an error that names the nearest one. Errors say file, line and column.
type Settings struct {
	fields []*Field
	byName map[string]*Field
	// Open reads a file that --config or defaults names; nil: the file system.
	Open func(name string) ([]byte, error)
	// Warnings are what is legal and may not be meant.
	Warnings []string
}

// Field is one key.
type Field struct {
	Name string
	Doc  string
	set  func(text string, quoted bool) error // of a scalar
	list *[]string                            // instead, for a list of texts
	get  func() any                           // bool, int64, uint64, float64, string, []string
	def  any
	raw  *value
}

// String returns the key and what it is set to as an argument of the command line.
func (f *Field) String() string {
	switch v := f.get().(type) {
	case []string:
		return f.Name + "=" + strings.Join(v, ",")
	case string:
		if strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' }) {
			return f.Name + "=" + strconv.Quote(v)
		}
		return f.Name + "=" + v
	default:
		return fmt.Sprintf("%s=%v", f.Name, v)
	}
}

// value is what a layer says of a key.
type value struct {
	text   string
	list   []string
	isList bool
	typed  bool   // by the schema alone: an override, where text needs no quotes
	quoted bool   // in YAML
	where  string // "c.yaml:3:5", "ppo.lr=…"
}

// NewSettings returns settings without keys.
func NewSettings() *Settings {
	return &Settings{byName: map[string]*Field{}}
}

func (s *Settings) add(f *Field) {
	if s.byName[f.Name] != nil {
		panic("config: the key " + f.Name + " is given twice")
	}
	f.def = f.get()
	s.fields = append(s.fields, f)
	s.byName[f.Name] = f
}

// Fields returns the keys in the order in which they were bound.
func (s *Settings) Fields() []*Field { return s.fields }

// Bool binds a key to true or false.
func (s *Settings) Bool(name string, p *bool, doc string) {
	s.add(&Field{Name: name, Doc: doc, get: func() any { return *p }, set: func(text string, quoted bool) error {
		if quoted || text != "true" && text != "false" {
			return errors.New("want true or false")
		}
		*p = text == "true"
		return nil
	}})
}

var integer = regexp.MustCompile(`^[-+]?(0|[1-9][0-9]*|0o[0-7]+|0x[0-9a-fA-F]+)$`)

// Int binds a key to an integer between least and most.
func (s *Settings) Int(name string, p *int, least, most int, doc string) {
	s.add(&Field{Name: name, Doc: doc, get: func() any { return int64(*p) }, set: func(text string, quoted bool) error {
		if quoted || !integer.MatchString(text) {
			if regexp.MustCompile(`^[-+]?0[0-9]+$`).MatchString(text) {
				return fmt.Errorf("readers of YAML disagree about %s: write %s or 0o%s", text, strings.TrimLeft(text, "0"), strings.TrimLeft(text, "0"))
			}
			return errors.New("want an integer")
		}
		n, err := strconv.ParseInt(strings.TrimPrefix(text, "+"), 0, 64)
		if err != nil || n < int64(least) || n > int64(most) {
			return fmt.Errorf("want an integer from %d to %d", least, most)
		}
		*p = int(n)
		return nil
	}})
}

// Uint64 binds a key to an integer from 0 to 2⁶⁴-1: a seed.
func (s *Settings) Uint64(name string, p *uint64, doc string) {
	s.add(&Field{Name: name, Doc: doc, get: func() any { return *p }, set: func(text string, quoted bool) error {
		n, err := strconv.ParseUint(text, 0, 64)
		if quoted || !integer.MatchString(text) || err != nil {
			return errors.New("want an integer from 0 to 2^64-1")
		}
		*p = n
		return nil
	}})
}

// Float binds a key to a number between least and most, each included. A NaN is never legal, infinity only if it is a limit.
func (s *Settings) Float(name string, p *float64, least, most float64, doc string) {
	s.add(&Field{Name: name, Doc: doc, get: func() any { return *p }, set: func(text string, quoted bool) error {
		x, ok := scalar(text).(float64)
		if quoted || !ok {
			return errors.New("want a number")
		}
		if !(x >= least && x <= most) {
			return errors.New("want a number " + span(least, most))
		}
		*p = x
		return nil
	}})
}

// span says in words between which limits a number is.
func span(least, most float64) string {
	switch {
	case most < math.MaxFloat64:
		return fmt.Sprintf("from %g to %g", least, most)
	case least == math.SmallestNonzeroFloat64:
		return "above 0"
	case least > -math.MaxFloat64:
		return fmt.Sprintf("from %g up", least)
	}
	return "that is finite"
}

// Text binds a key to text.
func (s *Settings) Text(name string, p *string, doc string) {
	s.add(&Field{Name: name, Doc: doc, get: func() any { return *p }, set: func(text string, quoted bool) error {
		if !quoted {
			if _, is := scalar(text).(string); !is {
				return fmt.Errorf("want text: quote it, %q", text)
			}
		}
		*p = text
		return nil
	}})
}

// Checked binds a key to text that check takes.
func (s *Settings) Checked(name string, p *string, check func(text string) error, doc string) {
	s.add(&Field{Name: name, Doc: doc, get: func() any { return *p }, set: func(text string, _ bool) error {
		err := check(text)
		if err == nil {
			*p = text
		}
		return err
	}})
}

// Choice binds a key to one of some words.
func (s *Settings) Choice(name string, p *string, legal []string, doc string) {
	s.add(&Field{Name: name, Doc: doc, get: func() any { return *p }, set: func(text string, quoted bool) error {
		if !slices.Contains(legal, text) {
			return fmt.Errorf("want one of %s%s", strings.Join(legal, ", "), didYouMean(text, legal))
		}
		*p = text
		return nil
	}})
}

// Texts binds a key to a list of texts, on the command line with commas between them.
func (s *Settings) Texts(name string, p *[]string, doc string) {
	s.add(&Field{Name: name, Doc: doc, list: p, get: func() any { return slices.Clone(*p) }})
}

// Override puts key=value over what is there. The type is that of the key, so text needs no quotes.
func (s *Settings) Override(assignment string) error {
	name, text, ok := strings.Cut(strings.TrimPrefix(assignment, "--"), "=")
	switch {
	case !ok && s.byName[name] != nil:
		return fmt.Errorf("%s lacks its value: %s=VALUE", name, name)
	case !ok:
		return fmt.Errorf("%q is no key=value", assignment)
	case strings.HasPrefix(name, "+") || strings.HasPrefix(name, "~"):
		return fmt.Errorf("%q: keys are neither added nor taken away", assignment)
	case len(text) > maxBytes || strings.ContainsRune(text, 0):
		return fmt.Errorf("the value of %.80q is too long or holds a NUL byte", name)
	}
	f, err := s.find(name)
	if err != nil {
		return fmt.Errorf("%q: %w", assignment, err)
	}
	f.raw = &value{text: text, typed: true, where: assignment}
	if f.list != nil {
		f.raw.isList, f.raw.list = true, nil
		if inner, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inner, "]") { // as YAML and Hydra write lists
			text = strings.TrimSuffix(inner, "]")
		}
		if strings.TrimSpace(text) != "" {
			for _, name := range strings.Split(text, ",") {
				f.raw.list = append(f.raw.list, strings.TrimSpace(name))
			}
		}
	}
	return nil
}

// Environment puts the variables PREFIX_A__B=value, for the key a.b, over what is there. An unknown one is an error: it was meant
// for this program.
func (s *Settings) Environment(prefix string, environ []string) error {
	for _, e := range environ {
		name, text, ok := strings.Cut(e, "=")
		name, is := strings.CutPrefix(name, prefix+"_")
		if !ok || !is {
			continue
		}
		key := strings.ToLower(strings.ReplaceAll(name, "__", "."))
		if err := s.Override(key + "=" + text); err != nil {
			return fmt.Errorf("environment variable %s_%s: %w", prefix, name, err)
		}
	}
	return nil
}

func (s *Settings) find(name string) (*Field, error) {
	if f := s.byName[name]; f != nil {
		return f, nil
	}
	var known []string
	for _, f := range s.fields {
		known = append(known, f.Name)
	}
	slices.Sort(known)
	return nil, fmt.Errorf("unknown key %.80q%s", name, didYouMean(name, known))
}

// didYouMean names the candidate with the fewest changed letters, if they are few.
func didYouMean(word string, candidates []string) string {
	if len(word) > maxName {
		return ""
	}
	best, least := "", 1+len(word)/2
	for _, c := range candidates {
		d := words.Distance(word, c)
		if last := c[strings.LastIndexByte(c, '.')+1:]; word == last {
			d = 0 // the last part alone
		}
		if d < least {
			best, least = c, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// Resolve replaces every ${key} and sets the variables. It reports the first error by the order of the keys.
func (s *Settings) Resolve() error {
	s.Warnings = nil
	whole := map[string]string{}
	for _, f := range s.fields {
		if f.raw == nil {
			if text, is := f.def.(string); is && strings.Contains(text, "${") {
				f.raw = &value{text: text, typed: true, where: "default of " + f.Name}
			} else {
				continue
			}
		}
		v := f.raw
		if f.list != nil {
			if !v.isList {
				return fmt.Errorf("%s: %s: want a list", v.where, f.Name)
			}
			*f.list = slices.Clone(v.list)
			continue
		}
		if v.isList {
			return fmt.Errorf("%s: %s: want one value, not a list", v.where, f.Name)
		}
		text, err := s.interpolated(v.text, []string{f.Name}, whole)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", v.where, f.Name, err)
		}
		quoted := v.quoted || v.typed || text != v.text
		if _, isText := f.def.(string); !isText {
			quoted = v.quoted
			if text == "" {
				return fmt.Errorf("%s: %s: has no value", v.where, f.Name)
			}
		}
		if err := f.set(text, quoted); err != nil {
			return fmt.Errorf("%s: %s: %w, not %.80q", v.where, f.Name, err, text)
		}
		if _, isFloat := f.def.(float64); isFloat && !v.typed && !strings.Contains(text, ".") && strings.ContainsAny(text, "eE") {
			s.Warnings = append(s.Warnings, fmt.Sprintf("%s: %s: PyYAML reads %s as text, not as a number: write %s", v.where, f.Name, text, yamlFloat(f.get().(float64))))
		}
	}
	return nil
}

// JSON returns the settings as one canonical JSON object with dotted names: keys in order, numbers as short as they can be.
func (s *Settings) JSON() []byte {
	all := map[string]any{}
	for _, f := range s.fields {
		v := f.get()
		if x, is := v.(float64); is && math.IsInf(x, 0) {
			v = fmt.Sprint(x)
		}
		if list, is := v.([]string); is && list == nil {
			v = []string{}
		}
		all[f.Name] = v
	}
	b, err := json.Marshal(all)
	if err != nil {
		panic("config: " + err.Error())
	}
	return b
}

// SHA256 identifies the settings: the hash of their JSON without the keys that say where and how often something is written, and
// not what is computed.
func (s *Settings) SHA256(without ...string) string {
	all := map[string]any{}
	if err := json.Unmarshal(s.JSON(), &all); err != nil {
		panic("config: " + err.Error())
	}
	for _, name := range without {
		if s.byName[name] == nil {
			panic("config: there is no key " + name)
		}
		delete(all, name)
	}
	b, err := json.Marshal(all)
	if err != nil {
		panic("config: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Changed returns what differs from the defaults, as key=value, in the order of the keys.
func (s *Settings) Changed() []string {
	var list []string
	for _, f := range s.fields {
		if got := f.get(); fmt.Sprint(got) != fmt.Sprint(f.def) {
			list = append(list, fmt.Sprintf("%s=%v", f.Name, got))
		}
	}
	return list
}

// ReadFile puts a file over what is there, and under it the first of the files that its key defaults names: a path from the
// folder of the file, or from the working directory. A file whose name ends in .py is lines "name = literal", as nanoGPT has them;
// it is never executed. The error is fs.ErrNotExist if the file itself is not there.
func (s *Settings) ReadFile(name string) error { return s.readFile(name, nil) }

func (s *Settings) readFile(name string, from []string) error {
	if slices.Contains(from, name) {
		return fmt.Errorf("defaults lead back to %s: %s", name, strings.Join(append(from, name), " -> "))
	}
	open := s.Open
	if open == nil {
		open = Bytes
	}
	data, err := open(name)
	if err != nil {
		return err
	}
	var values []namedValue
	var defaults string
	if filepath.Ext(name) == ".py" {
		values, err = parseAssignments(filepath.ToSlash(name), data)
	} else {
		values, defaults, err = parseSettings(filepath.ToSlash(name), data)
	}
	if err != nil {
		return err
	}
	if defaults != "" {
		beside := filepath.Join(filepath.Dir(name), defaults)
		err := s.readFile(beside, append(from, name))
		if errors.Is(err, os.ErrNotExist) {
			err = s.readFile(defaults, append(from, name))
		}
		if err != nil {
			return fmt.Errorf("%s: defaults: %w", name, err)
		}
	}
	for _, v := range values {
		f, err := s.find(v.name)
		if err != nil {
			return fmt.Errorf("%s: %w", v.where, err)
		}
		f.raw = &v.value
	}
	return nil
}
