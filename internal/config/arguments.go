package config

import (
	"regexp"
	"slices"
	"strings"
)

// Arguments reads the arguments of a program, in the forms that argparse and Hydra have:
//
//	--actor.eps_clip_low_high 0.2 0.27    --beta=0.04    --use_vllm
//	algorithm.gamma=1.0    +data.max=5    ~trainer.logger
//
// as a list, one or many on a line, or inside a shell script: # begins a comment, quotes and a backslash at the end of a line
// are the shell's, X=1 on a line of its own is a variable, and $X, ${X}, ${X:-default} and $((X * 2)) are replaced where the
// script says what X is. Other expansions are not known here; the arguments that have them are listed in Unread. Nothing is
// run. The last of two arguments of one name counts. Of a script, the command with the most arguments is read. A text that
// begins with a dash is a list of arguments: the ends of its lines are no ends of commands.
func Arguments(text string) (*File, error) {
	words, err := shellWords(text)
	if err != nil {
		return nil, err
	}
	return argumentsOf(words), nil
}

func arguments(list []string) *File {
	var words []word
	for _, s := range list {
		words = append(words, word{text: s})
	}
	return argumentsOf(words)
}

var (
	assignment = regexp.MustCompile(`^(\+{0,2})([A-Za-z_][A-Za-z0-9_/@]*(?:\.[A-Za-z0-9_/@]+)*)=`)
	flagName   = regexp.MustCompile(`^--?([A-Za-z_][A-Za-z0-9_.-]*)(=|$)`)
	deletion   = regexp.MustCompile(`^~[A-Za-z_][A-Za-z0-9_.]*$`)
)

// argumentsOf reads the command that has the most arguments; scripts have others before and after it.
func argumentsOf(words []word) *File {
	best := &File{Tree: map[string]any{}}
	most := -1
	for len(words) > 0 {
		end := slices.IndexFunc(words, func(w word) bool { return w.end })
		command := words
		if end >= 0 {
			command, words = words[:end], words[end+1:]
		} else {
			words = nil
		}
		if c, n := oneCommand(command); n > most {
			best, most = c, n
		}
	}
	return best
}

// oneCommand reads the arguments of a command and counts them. What stands before -- or, of a launcher, before the script
// that it launches is not among them.
func oneCommand(words []word) (c *File, n int) {
	c = &File{Tree: map[string]any{}}
	var program []string
	launcher := false
	for i := 0; i < len(words); i++ {
		w := words[i]
		flag := flagName.FindStringSubmatch(w.text)
		over := assignment.FindStringSubmatch(w.text)
		switch {
		case w.text == "--" || launcher && strings.HasSuffix(w.text, ".py"):
			c, n, launcher = &File{Tree: map[string]any{}}, 0, false
			program = append(program, w.text)
		case launcher && (w.text == "--module" || w.text == "-m"): // of what comes next
			c, n, launcher = &File{Tree: map[string]any{}}, 0, false
			program = append(program, w.text)
		case flag != nil && !strings.HasPrefix(w.text, "--"): // -m, -x
			if n == 0 {
				program = append(program, w.text)
			}
		case flag != nil:
			n++
			name := flag[1]
			if !strings.Contains(name, ".") {
				name = strings.ReplaceAll(name, "-", "_")
			}
			var values []word
			if flag[2] == "=" {
				values = []word{w.after(len(flag[0]))}
			}
			for flag[2] == "" && i+1 < len(words) && isValue(words[i+1]) && !(launcher && strings.HasSuffix(words[i+1].text, ".py")) {
				i++
				values = append(values, words[i])
			}
			c.setFlag(name, values)
		case over != nil:
			n++
			c.set(over[2], w.after(len(over[0])), overrideValue)
		case deletion.MatchString(w.text):
			c.Deleted = append(c.Deleted, w.text[1:])
			deleteAt(c.Tree, w.text[1:])
		case n == 0:
			c.Open = c.Open || w.unknown != ""
			program = append(program, w.text)
			launcher = launcher || launchers[w.text]
		}
	}
	c.Program = strings.TrimSpace(strings.Join(program, " "))
	return c, n
}

// launchers start a script with flags of their own before it.
var launchers = map[string]bool{"accelerate": true, "torchrun": true, "deepspeed": true}

// isValue reports whether a word belongs to the flag before it.
func isValue(w word) bool {
	if w.quoted {
		return true
	}
	return w.text != "--" && flagName.FindString(w.text) == "" && !assignment.MatchString(w.text)
}

// setFlag sets a flag of argparse: without values it is true, with several a list.
func (c *File) setFlag(name string, values []word) {
	switch len(values) {
	case 0:
		setAt(c.Tree, name, true)
		return
	case 1:
		c.set(name, values[0], flagValue)
		return
	}
	var list []any
	for _, v := range values {
		if v.unknown != "" {
			c.Open = true
			c.set(name, v, flagValue)
			return
		}
		list = append(list, flagValue(strings.TrimSuffix(v.text, ","))) // some scripts write lists with commas
	}
	setAt(c.Tree, name, list)
}

func (c *File) set(name string, w word, value func(string) any) {
	if w.unknown != "" {
		deleteAt(c.Tree, name)
		c.Unread = append(c.Unread, Unread{name, w.unknown})
		return
	}
	setAt(c.Tree, name, value(w.text))
}

// flagValue is what the functions of argparse make of a word: numbers, booleans, None.
func flagValue(s string) any {
	if s == "None" {
		return nil
	}
	switch v := scalar(s).(type) {
	case nil:
		if s == "" {
			return ""
		}
		return v
	default:
		return v
	}
}

// overrideValue is what Hydra makes of the right side of an override: numbers, booleans and null, text in quotes, lists of
// these. Mappings stay text.
func overrideValue(s string) any {
	s = strings.TrimSpace(s)
	if n := len(s); n > 1 && (s[0] == '"' || s[0] == '\'') && s[n-1] == s[0] {
		return s[1 : n-1]
	}
	if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inner, "]") && !strings.ContainsAny(inner[:len(inner)-1], "[]{}") {
		list := []any{}
		inner = strings.TrimSuffix(inner, "]")
		if strings.TrimSpace(inner) == "" {
			return list
		}
		for _, e := range strings.Split(inner, ",") {
			list = append(list, overrideValue(e))
		}
		return list
	}
	return scalar(s)
}
