package runlog

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"
)

// cleanName is a name that can be shown: UTF-8 without control characters, not too long.
func cleanName(s []byte) string {
	const most = 200
	name := strings.Map(func(c rune) rune {
		if unicode.In(c, unicode.Cc, unicode.Bidi_Control, unicode.Zl, unicode.Zp) {
			return utf8.RuneError
		}
		return c
	}, strings.ToValidUTF8(string(s), string(utf8.RuneError)))
	if len(name) > most {
		cut := most
		for !utf8.RuneStart(name[cut]) {
			cut--
		}
		name = name[:cut] + "…"
	}
	return name
}

// console reads a line that is neither JSON nor CSV.
func (r *Reader) console(s []byte) (Form, error) {
	const longest = 1 << 16 // of a line that a person reads
	if len(s) > longest {
		return Text, nil
	}
	for _, f := range []func([]byte) (Form, bool, error){r.python, r.verl, r.systems, r.smi, r.pairs} {
		form, ok, err := f(s)
		if ok || err != nil {
			return form, err
		}
		r.row.Fields = r.row.Fields[:0]
	}
	return Text, nil
}

// python reads a dictionary that is printed in a line, as transformers and OpenRLHF do; a step before it is that of the line.
func (r *Reader) python(s []byte) (Form, bool, error) {
	open := bytes.Index(s, []byte("{'"))
	if open < 0 {
		if open = bytes.Index(s, []byte(`{"`)); open < 0 {
			return Text, false, nil
		}
	}
	p := parser{s: s, i: open, r: r}
	r.depth = 0
	if err := p.object(nil); err != nil {
		return Text, false, nil
	}
	known := false
	for _, f := range r.row.Fields {
		known = known || r.Known(r.Names[f.Name])
	}
	if !known {
		return Text, false, nil
	}
	head := bytes.ToLower(s[:open])
	if at := bytes.LastIndex(head, []byte("step")); at >= 0 {
		if n, _ := digits(bytes.TrimLeft(head[at+len("step"):], " :=#")); n != nil {
			if _, err := r.token([]byte("step"), n); err != nil {
				return Text, false, err
			}
		}
	}
	return Python, true, nil
}

// digits returns the digits at the start of s, and what follows.
func digits(s []byte) (number, rest []byte) {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	if n == 0 {
		return nil, s
	}
	return s[:n], s[n:]
}

// verl reads "step:1 - actor/pg_loss:-0.1 - …".
func (r *Reader) verl(s []byte) (Form, bool, error) {
	at := bytes.Index(s, []byte("step:"))
	if at < 0 {
		return Text, false, nil
	}
	n, rest := digits(s[at+len("step:"):])
	if n == nil || !bytes.HasPrefix(rest, []byte(" - ")) {
		return Text, false, nil
	}
	if _, err := r.token([]byte("step"), n); err != nil {
		return Text, false, err
	}
	for _, part := range bytes.Split(rest[len(" - "):], []byte(" - ")) {
		if i := bytes.LastIndexByte(part, ':'); i > 0 {
			if _, err := r.token(bytes.TrimSpace(part[:i]), bytes.TrimSpace(part[i+1:])); err != nil {
				return Text, false, err
			}
		}
	}
	return Verl, true, nil
}

// systems reads the lines that the four systems of this project print.
func (r *Reader) systems(s []byte) (Form, bool, error) {
	has := func(prefix string) bool { return bytes.HasPrefix(s, []byte(prefix)) }
	switch {
	case has("config "):
		if key, value, ok := bytes.Cut(s[len("config "):], []byte("=")); ok && bytes.IndexByte(key, ' ') < 0 {
			r.row.Key, r.row.Text = cleanName(bytes.TrimSpace(key)), bytes.TrimSpace(value)
			return Config, true, nil
		}
	case has("iter "):
		n, rest := digits(s[len("iter "):])
		if n == nil || !bytes.HasPrefix(rest, []byte(":")) {
			return Text, false, nil
		}
		err := r.fields(Iter, rest[1:], "iter", n)
		return Iter, err == nil, err
	case has("[Micro "):
		n, rest := digits(s[len("[Micro "):])
		if n == nil || !bytes.HasPrefix(rest, []byte("] ")) {
			return Text, false, nil
		}
		phase, rest := digits(rest[2:])
		if phase == nil {
			return Progress, true, nil // [Micro 3] skipped: …
		}
		if _, err := r.token([]byte("micro"), n); err != nil {
			return Text, false, err
		}
		err := r.fields(Micro, rest, "phase", phase)
		return Micro, err == nil, err
	case has("5. Optimizer step finished"):
		err := r.fields(Micro, s[2:], "phase", s[:1])
		return Micro, err == nil, err
	case has("[Batch "):
		n, rest := digits(bytes.TrimLeft(s[len("[Batch "):], " "))
		if n == nil || !bytes.HasPrefix(rest, []byte("]")) {
			return Text, false, nil
		}
		err := r.fields(Batch, rest[1:], "batch", n)
		return Batch, err == nil, err
	case has("[Epoch "):
		n, rest := digits(s[len("[Epoch "):])
		if n == nil || !bytes.HasPrefix(rest, []byte("] ")) {
			return Text, false, nil
		}
		name, value, ok := bytes.Cut(rest[2:], []byte(":"))
		if !ok {
			return Text, false, nil
		}
		value = bytes.TrimSpace(value)
		if i := bytes.IndexAny(value, " s"); i > 0 {
			value = value[:i]
		}
		name = bytes.ReplaceAll(bytes.ToLower(bytes.TrimSpace(name)), []byte(" "), []byte("_"))
		if _, err := r.token([]byte("epoch"), n); err != nil {
			return Text, false, err
		}
		ok, err := r.token(name, value)
		return Batch, ok, err
	case has("Epoch ") && bytes.Contains(s, []byte("% ")) && bytes.Contains(s, []byte("/")), has("Creating models"), has("[OK] "), has("Starting complete training"):
		return Progress, true, nil
	case has("Gradient flow:"):
		err := r.fields(Flow, s[len("Gradient flow:"):], "", nil)
		return Flow, err == nil && len(r.row.Fields) > 0, err
	case has("step "):
		return r.stepLine(s[len("step "):])
	}
	return Text, false, nil
}

// fields reads "name value", "name=value" and "name: value" pairs with anything between them; first is a number that is there already.
func (r *Reader) fields(f Form, s []byte, first string, value []byte) error {
	if first != "" {
		if _, err := r.token([]byte(first), value); err != nil {
			return err
		}
	}
	_, err := r.scan(s, true, f == Micro || f == Iter || f == Batch || f == Flow)
	return err
}

// stepLine reads "3/30 loss 0.1 kl 0.2": numbers behind names, a/b for two of a name, a±b for a mean and its deviation.
func (r *Reader) stepLine(s []byte) (Form, bool, error) {
	n, rest := digits(s)
	if n == nil || len(rest) == 0 || rest[0] != '/' {
		return Text, false, nil
	}
	_, rest = digits(rest[1:])
	words := bytes.Fields(rest)
	if len(words) < 2 {
		return Text, false, nil
	}
	if _, err := r.token([]byte("step"), n); err != nil {
		return Text, false, err
	}
	for i := 0; i+1 < len(words); {
		name, value := words[i], words[i+1]
		if _, _, isNumber := number(name); isNumber || name[0] >= '0' && name[0] <= '9' {
			return Text, false, nil
		}
		i += 2
		second := []byte(nil)
		suffix := ""
		if i+1 < len(words) && string(words[i]) == "of" {
			second, suffix = words[i+1], "_of"
			i += 2
		} else if a, b, ok := bytes.Cut(value, []byte("±")); ok {
			value, second, suffix = a, b, "_std"
		} else if a, b, ok := bytes.Cut(value, []byte("/")); ok {
			value, second, suffix = a, b, "_2"
		}
		ok, err := r.token(name, value)
		if err != nil || !ok {
			return Text, false, err
		}
		if second != nil {
			if _, err := r.token(append(append([]byte{}, name...), suffix...), second); err != nil {
				return Text, false, err
			}
		}
	}
	return Steps, true, nil
}

// smi reads a line of nvidia-smi: "18500 MiB", "0, 18500 MiB, 24576 MiB", "| 18500MiB / 24576MiB |".
func (r *Reader) smi(s []byte) (Form, bool, error) {
	at := bytes.Index(s, []byte("MiB"))
	if at < 0 {
		return Text, false, nil
	}
	end := len(bytes.TrimRight(s[:at], " "))
	from := end
	for from > 0 && (s[from-1] >= '0' && s[from-1] <= '9' || s[from-1] == '.') {
		from--
	}
	if from == end || len(bytes.Trim(s[:from], "0123456789, |NAWCP/%.-")) > 0 {
		return Text, false, nil
	}
	ok, err := r.token([]byte("memory.used [MiB]"), s[from:end])
	return SMI, ok, err
}

// pairs reads name=number and name: number, where one of the names is known.
func (r *Reader) pairs(s []byte) (Form, bool, error) {
	known, err := r.scan(s, false, false)
	if err != nil || !known {
		return Pairs, false, err
	}
	for _, f := range r.row.Fields {
		if name := r.Names[f.Name]; name == "step" || name == "global_step" || name == "iter" || name == "batch" {
			return Pairs, true, nil
		}
	}
	low := bytes.ToLower(s)
	for _, word := range []string{"step", "iter", "iteration", "update"} { // "Step 12/100", "[step 12]", "step #12:"
		for at := 0; ; {
			i := bytes.Index(low[at:], []byte(word))
			if i < 0 {
				break
			}
			at += i + len(word)
			if before := at - len(word) - 1; before >= 0 && letter(low[before]) {
				continue
			}
			if n, rest := digits(bytes.TrimLeft(low[at:], " #:=")); n != nil && (len(rest) == 0 || rest[0] != '.' && !letter(rest[0])) {
				_, err := r.token([]byte("step"), n)
				return Pairs, true, err
			}
		}
	}
	return Pairs, true, nil
}

// scan adds the numbers that stand behind names: after = or :, or, where loose, after a space. known says that one of the names is
// that of a metric; placeholders such as X.XXX are passed over.
func (r *Reader) scan(s []byte, loose, all bool) (known bool, err error) {
	for i := 0; i < len(s); {
		c := s[i]
		if !letter(c) {
			i++
			continue
		}
		if i > 0 && (s[i-1] >= '0' && s[i-1] <= '9' || s[i-1] == '.') { // the unit of a number
			for i < len(s) && part(s[i]) {
				i++
			}
			continue
		}
		from := i
		for i < len(s) && part(s[i]) {
			i++
		}
		name := bytes.TrimRight(s[from:i], "./-")
		if len(name) == 0 {
			continue
		}
		j := i
		for j < len(s) && s[j] == ' ' {
			j++
		}
		switch {
		case j < len(s) && (s[j] == '=' || s[j] == ':'):
			for j++; j < len(s) && s[j] == ' '; j++ {
			}
		case !loose || j == i:
			continue
		}
		end := j
		for end < len(s) && (part(s[end]) || s[end] == '+') {
			end++
		}
		value := bytes.TrimRight(s[j:end], ".")
		spread := []byte(nil)
		if bytes.HasPrefix(s[end:], []byte("±")) {
			from := end + len("±")
			for end = from; end < len(s) && part(s[end]); end++ {
			}
			spread = s[from:end]
		}
		value = bytes.TrimRight(value, "/")
		if len(value) == 0 || !all && len(value) > 0 && letter(value[0]) && !is(value, "nan") && !is(value, "inf") {
			continue
		}
		if !loose && prose(s[end:]) {
			continue
		}
		value = unit(value)
		ok, err := r.token(name, value)
		if err != nil {
			return known, err
		}
		if !ok {
			continue
		}
		if i = end; r.Known(string(name)) {
			known = true
		}
		if len(spread) > 0 {
			if _, err := r.token(append(append([]byte{}, name...), "_std"...), unit(spread)); err != nil {
				return known, err
			}
		}
	}
	return known, nil
}

// prose reports whether words follow a number, as in "loss: 4 batches are too few": words that are no name of another number.
func prose(s []byte) bool {
	s = bytes.TrimLeft(s, " ")
	n := 0
	for n < len(s) && part(s[n]) {
		n++
	}
	if n == 0 || !letter(s[0]) {
		return false
	}
	rest := bytes.TrimLeft(s[n:], " ")
	return len(rest) > 0 && letter(rest[0])
}

// unit cuts a unit off a number: 12.5ms, 123MB, 45%.
func unit(s []byte) []byte {
	if len(s) == 0 {
		return s
	}
	if s[0] >= '0' && s[0] <= '9' || s[0] == '-' || s[0] == '.' || s[0] == '+' {
		end := len(s)
		for end > 0 && !(s[end-1] >= '0' && s[end-1] <= '9' || s[end-1] == '.') {
			end--
		}
		if end > 0 && !is(s[1:], "inf") && !is(s[1:], "nan") {
			switch string(bytes.ToLower(s[end:])) {
			case "", "s", "ms", "mb", "gb", "mib", "gib":
				return s[:end]
			}
		}
	}
	return s
}

func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' }

func part(c byte) bool {
	return letter(c) || c >= '0' && c <= '9' || c == '/' || c == '.' || c == '-'
}
