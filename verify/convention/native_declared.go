package convention

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"plumbline/verify/check"
)

// agreed is what all results say, and a list of the names on which they differ.
func agreed(results []*translation, native []NameValue) *Declared {
	first := results[0]
	d := &Declared{Set: first.set, Overrides: first.changed}
	if len(results) > 1 {
		d.Set, d.Overrides = common(results), nil
	}
	var tables []string
	for _, r := range results {
		tables = append(tables, strings.TrimSpace(r.table.name+" "+r.table.release))
	}
	for _, o := range native {
		_, shared := nativeShared().find(o.Name)
		if _, theirs := first.table.find(o.Name); theirs && !shared {
			d.Table = strings.Join(tables, ", ")
		}
		t, isTaken := first.taken[o.Name]
		same := true
		for _, r := range results[1:] {
			u := r.taken[o.Name]
			same = same && slices.Equal(t.Sets, u.Sets) && t.Fact == u.Fact && first.beyond[o.Name] == r.beyond[o.Name]
		}
		if !same {
			var says []string
			for _, r := range results {
				says = append(says, r.table.name+": "+r.says(o.Name))
			}
			d.Ambiguous = append(d.Ambiguous, words(o)+" ("+strings.Join(says, "; ")+")")
			t.Sets = slices.DeleteFunc(slices.Clone(t.Sets), func(a Assignment) bool { return d.Set.Value(a.Option) != a.Value })
			if _, kept := d.Set.Fact(t.Fact); !kept {
				t.Fact = ""
			}
			t.Note, isTaken = "that is what "+strings.Join(tables, " and ")+" agree on", len(t.Sets) > 0 || t.Fact != ""
		}
		switch {
		case isTaken:
			d.Taken = append(d.Taken, t)
		case same && first.ignored[o.Name]:
			d.Ignored = append(d.Ignored, o.Name)
		}
		if note := first.beyond[o.Name]; same && note != "" {
			d.Beyond = append(d.Beyond, note)
		}
	}
	d.Unknown = nearestNames(first.unknown, results)
	return d
}

// common returns the values and facts that all results have.
func common(results []*translation) *Set {
	set := &Set{}
	first, others := results[0].set, results[1:]
	for _, option := range first.Names() {
		v := first.Value(option)
		if !slices.ContainsFunc(others, func(r *translation) bool { return r.set.Value(option) != v }) {
			set = set.With(option, v, first.Origin(option))
		}
	}
	for _, fact := range first.Facts() {
		v, _ := first.Fact(fact)
		if !slices.ContainsFunc(others, func(r *translation) bool { w, ok := r.set.Fact(fact); return !ok || showValue(v) != showValue(w) }) {
			set = set.WithFact(fact, v)
		}
	}
	for stage, text := range first.beyond {
		if !slices.ContainsFunc(others, func(r *translation) bool { return r.set.Beyond(stage) != text }) {
			set = set.withBeyond(stage, text)
		}
	}
	return set
}

// says is what r makes of a name, in words.
func (r *translation) says(name string) string {
	t := r.taken[name]
	switch {
	case r.beyond[name] != "":
		return "no option expresses it"
	case len(t.Sets) == 0 && t.Fact == "":
		return "nothing"
	}
	return strings.TrimPrefix(Translation{Sets: t.Sets, Fact: t.Fact}.String(), " → ")
}

// nearestNames names the nearest known name for the first unknown ones; a file may have very many.
func nearestNames(unknown []string, results []*translation) []string {
	if len(unknown) == 0 {
		return nil
	}
	candidates := Names()
	for _, r := range results {
		candidates = append(candidates, r.table.names...)
		for form := range r.table.short {
			if !strings.Contains(form, ".") {
				candidates = append(candidates, form)
			}
		}
	}
	slices.Sort(candidates)
	candidates = slices.Compact(candidates)
	var list []string
	for i, name := range unknown {
		if i < 20 {
			name = fmt.Sprintf("%.64s (nearest: %s)", name, nearestName(name, candidates))
		}
		list = append(list, name)
	}
	return list
}

func nearestName(name string, candidates []string) string {
	return check.Nearest(clipped(name), candidates)
}

// declareNeutral sets the neutral options, over what native names said.
func (d *Declared) declareNeutral(neutral []NameValue, origin string) error {
	strong := &Set{}
	given := map[string]NameValue{}
	for _, o := range neutral {
		if before, twice := given[o.Name]; twice && showValue(before.Value) != showValue(o.Value) {
			return fmt.Errorf("%s is given twice: %s and %s", o.Name, words(before), words(o))
		}
		given[o.Name] = o
		v, err := parseAny(o)
		if err != nil {
			return err
		}
		if v.Kind() == Unknown { // declared to be so
			d.Set = d.Set.With(o.Name, v, "")
			continue
		}
		strong = strong.With(o.Name, v, from(words(o), origin))
		d.Taken = append(d.Taken, Translation{Words: words(o), Sets: []Assignment{{o.Name, v}}})
	}
	set, changed := d.Set.Over(strong)
	d.Set = set
	d.Overrides = append(d.Overrides, changed...)
	return nil
}

// parseAny reads the value of a neutral option; null is none.
func parseAny(o NameValue) (Value, error) {
	option, err := Find(o.Name)
	if err != nil {
		return Value{}, err
	}
	if o.Value == nil {
		if v, ok := option.parse("none"); ok {
			return v, nil
		}
		return Value{}, fmt.Errorf("%s: null is no legal value; want %s, or leave it out", o.Name, option.Legal())
	}
	text := showValue(o.Value)
	v, err := option.Parse(text)
	if err != nil && option.Type == EnumType {
		return v, fmt.Errorf("%w; did you mean %q?", err, check.Nearest(clipped(text), option.Values))
	}
	return v, err
}

// putInOrder sorts Taken into the order of the file.
func (d *Declared) putInOrder(flat []NameValue) {
	at := map[string]int{}
	for i, o := range flat {
		if w := words(o); at[w] == 0 {
			at[w] = i + 1
		}
	}
	slices.SortStableFunc(d.Taken, func(a, b Translation) int { return at[a.Words] - at[b.Words] })
	d.Taken = slices.CompactFunc(d.Taken, func(a, b Translation) bool { return a.Words == b.Words })
}

func from(words, origin string) string {
	if origin == "" {
		return words
	}
	return words + " (" + origin + ")"
}

// words are those of the file: "loss_type=grpo".
func words(o NameValue) string {
	text := showValue(o.Value)
	if len(text) > 64 {
		text = strings.ToValidUTF8(text[:64], "") + "…"
	}
	return fmt.Sprintf("%.64s=%s", o.Name, text)
}

// showValue writes a value as options have it: numbers as [Value.String] does, lists with commas.
func showValue(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(v)
	case float64:
		if !finite(v) {
			return strconv.FormatFloat(v, 'g', -1, 64)
		}
		return number(v)
	case string:
		return v
	case []any:
		var parts []string
		for _, e := range v {
			parts = append(parts, showValue(e))
		}
		return strings.Join(parts, ",")
	case map[string]any:
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, k+":"+showValue(v[k]))
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	panic(errors.New("convention: an option has a value of an unknown type"))
}
