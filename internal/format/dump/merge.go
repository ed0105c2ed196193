package dump

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"plumbline/internal/format"
)

// ownOptions are options that differ from process to process by nature; those of the first file stand for the step.
var ownOptions = map[string]bool{
	"seed": true, "data_seed": true, "local_rank": true, "device": true, "hostname": true, "pid": true,
}

// countedOptions are numbers that a program counts in its batch: files of a step that do not agree on one are of a program that counts wrong, not of two
// runs.
var countedOptions = map[string]bool{"num_items_in_batch": true}

// claim is something that a file says of the whole step.
type claim struct {
	key   string
	value any
	note  bool          // a difference between files is noted, not refused
	set   func(m *Meta) // takes it over
}

// claims returns what m says of the whole step.
func (m *metadata) claims() []claim {
	var list []claim
	add := func(said bool, key string, value any, set func(*Meta)) {
		if said {
			list = append(list, claim{key: key, value: value, set: set})
		}
	}
	text := func(key, value string, field func(*Meta) *string) {
		add(value != "", key, value, func(to *Meta) { *field(to) = value })
	}
	text("framework", m.Framework, func(to *Meta) *string { return &to.Framework })
	text("version", m.Version, func(to *Meta) *string { return &to.Version })
	text("algorithm", m.Algorithm, func(to *Meta) *string { return &to.Algorithm })
	text("profile", m.Profile, func(to *Meta) *string { return &to.Profile })
	text("run", m.Run, func(to *Meta) *string { return &to.Run })
	add(m.WorldSize > 0, "world_size", m.WorldSize, func(to *Meta) { to.WorldSize = m.WorldSize })
	add(m.MicroBatches > 0, "micro_batches", m.MicroBatches, func(to *Meta) { to.MicroBatches = m.MicroBatches })
	add(true, "align", m.Align.String(), func(to *Meta) { to.Align = m.Align })
	text("scalars_scope", m.ScalarsScope, func(to *Meta) *string { return &to.ScalarsScope })
	text("compute_dtype", m.ComputeDType, func(to *Meta) *string { return &to.ComputeDType })
	add(true, "dlogp_scale", m.DLogpScale, func(to *Meta) { to.DLogpScale = m.DLogpScale })
	if p := m.TokenLossIncludesKL; p != nil {
		add(true, "token_loss_includes_kl", *p, func(to *Meta) { to.TokenLossIncludesKL = p })
	}
	if p := m.ScoresShaped; p != nil {
		add(true, "scores_shaped", *p, func(to *Meta) { to.ScoresShaped = p })
	}
	if p := m.MaskedFill; p != nil {
		add(true, "masked_fill", *p, func(to *Meta) { to.MaskedFill = p })
	}
	for _, o := range m.Options {
		set := func(to *Meta) { to.Options = append(to.Options, o) }
		list = append(list, claim{optionKey + o.Name, o.Value, ownOptions[o.Name], set})
	}
	return list
}

// optionKey begins the key of a claim that is an option.
const optionKey = "options, "

// isCount reports whether a claim is a count of the batch.
func isCount(c claim) bool {
	_, number := c.value.(float64)
	return number && countedOptions[strings.TrimPrefix(c.key, optionKey)]
}

// merger joins what the files of a step say of it.
type merger struct {
	Meta
	said  map[string]claim
	by    map[string]string // the file that said it first
	lossy map[string]bool   // the names of Lossy
	count []Count           // of all files
	notes *notes
}

// add takes over what m, the metadata of the file at path, says. What contradicts an earlier file is an error.
func (g *merger) add(m *metadata, path string) error {
	first := g.said == nil
	if first {
		g.Meta = m.Meta
		g.said, g.by, g.lossy = map[string]claim{}, map[string]string{}, map[string]bool{}
		g.Lossy = nil
	}
	for _, o := range m.Options {
		if n, ok := o.Value.(float64); ok && countedOptions[o.Name] {
			g.count = append(g.count, Count{o.Name, m.Rank, m.MicroBatch, n})
		}
	}
	for _, c := range m.claims() {
		switch old, ok := g.said[c.key]; {
		case !ok:
			g.said[c.key], g.by[c.key] = c, path
			if !first {
				c.set(&g.Meta)
				g.notes.add(path, fmt.Sprintf("only here the metadata say %s; it is taken to hold for all files of the step", c.key))
			}
		case reflect.DeepEqual(old.value, c.value):
		case isCount(c):
			g.differ(strings.TrimPrefix(c.key, optionKey))
		case c.note:
			g.notes.add(path, fmt.Sprintf("%s differs from that of %s, as may be", c.key, g.by[c.key]))
		default:
			return format.Malformed(m.source, "key "+c.key, "is %s, but %s in %s, which is of the same step %d",
				show(c.value), show(old.value), g.by[c.key], m.Step)
		}
	}
	if len(g.Counts) > 0 {
		g.Counts = g.count
	}
	for _, name := range m.Lossy {
		if !g.lossy[name] {
			g.lossy[name] = true
			g.Lossy = append(g.Lossy, name)
		}
	}
	return nil
}

// differ takes a count that files do not agree on out of the options of the step.
func (g *merger) differ(name string) {
	g.Options = slices.DeleteFunc(slices.Clone(g.Options), func(o Option) bool { return o.Name == name })
	g.Counts = g.count
}

// difference names the first key in which two metadata of one file differ.
func difference(a, b *metadata) string {
	for _, p := range []struct {
		key  string
		a, b any
	}{{"step", a.Step, b.Step}, {"rank", a.Rank, b.Rank}, {"micro_batch", a.MicroBatch, b.MicroBatch}} {
		if p.a != p.b {
			return fmt.Sprintf("%s is %v and %v", p.key, p.a, p.b)
		}
	}
	claims := map[string]any{}
	for _, c := range a.claims() {
		claims[c.key] = c.value
	}
	for _, c := range b.claims() {
		old, ok := claims[c.key]
		if !ok {
			return "only one says " + c.key
		}
		if !reflect.DeepEqual(old, c.value) {
			return fmt.Sprintf("%s is %s and %s", c.key, show(old), show(c.value))
		}
		delete(claims, c.key)
	}
	for _, c := range a.claims() {
		if _, left := claims[c.key]; left {
			return "only one says " + c.key
		}
	}
	return "their scalars or their lists of tensors are not the same"
}

// show formats a value of the metadata for a message.
func show(v any) string {
	text := fmt.Sprintf("%v", v)
	if s, ok := v.(string); ok {
		text = fmt.Sprintf("%q", s)
	}
	if v == nil {
		text = "null"
	}
	if len(text) > 80 {
		text = strings.ToValidUTF8(text[:80], "") + "…"
	}
	return text
}

// maxMissing bounds the lines about missing files: a metadata may declare a billion ranks.
const maxMissing = 32

// missing says in words which ranks and micro-batches of a step are not there. files are in order of rank and
// micro-batch. Where the files do not say how many there are, the highest that is there is taken to be the last.
func missing(files []FileInfo, m *Meta) []string {
	var lines []string
	gap := func(what, suffix string, lo, hi, of int) { // [lo, hi)
		total := ""
		if of > 0 {
			total = fmt.Sprintf(" of %d", of)
		}
		switch {
		case lo >= hi:
		case len(lines) == maxMissing:
			lines = append(lines, "… and more")
		case len(lines) > maxMissing:
		case hi == lo+1:
			lines = append(lines, fmt.Sprintf("%s %d%s%s: no file for step %d", what, lo, total, suffix, m.Step))
		case what == "rank":
			lines = append(lines, fmt.Sprintf("ranks %d to %d%s%s: no file for step %d", lo, hi-1, total, suffix, m.Step))
		default:
			lines = append(lines, fmt.Sprintf("micro-batches %d to %d%s%s: no file for step %d", lo, hi-1, total, suffix, m.Step))
		}
	}
	rank := -1 // the last one seen
	for i := 0; i < len(files); {
		gap("rank", "", rank+1, files[i].Rank, m.WorldSize)
		rank = files[i].Rank
		suffix := fmt.Sprintf(" of rank %d", rank)
		micro := -1
		for ; i < len(files) && files[i].Rank == rank; i++ {
			gap("micro-batch", suffix, micro+1, files[i].MicroBatch, m.MicroBatches)
			micro = files[i].MicroBatch
		}
		gap("micro-batch", suffix, micro+1, m.MicroBatches, m.MicroBatches)
	}
	gap("rank", "", rank+1, m.WorldSize, m.WorldSize)
	return lines
}

// notes collects remarks on files, equal ones of several files as one.
type notes struct {
	texts []string // in order of the first file
	files map[string][]string
	names []Unread // each name once
}

func (n *notes) unread(u Unread) {
	if len(n.names) < maxUnread && !slices.ContainsFunc(n.names, func(v Unread) bool { return u.Name == v.Name && u.Key == v.Key }) {
		n.names = append(n.names, u)
	}
}

// maxUnread bounds the names that are kept: a file may have very many.
const maxUnread = 256

func (n *notes) add(path, text string) {
	if n.files == nil {
		n.files = map[string][]string{}
	}
	if n.files[text] == nil {
		n.texts = append(n.texts, text)
	}
	n.files[text] = append(n.files[text], path)
}

// list returns the notes, each with the file that it is about, or the first and how many more of all.
func (n *notes) list() []string {
	var lines []string
	for _, text := range n.texts {
		lines = append(lines, some(n.files[text])+": "+text)
	}
	return lines
}

// some names the first of a list of files.
func some(files []string) string {
	if len(files) == 1 {
		return files[0]
	}
	return fmt.Sprintf("%s and %d more", files[0], len(files)-1)
}
