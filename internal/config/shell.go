package config

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// word is a word of a shell script.
type word struct {
	text    string
	unknown string // an expansion in it that the script does not decide: "$HOME"
	quoted  bool
	end     bool // no word: the end of a command
}

// after is the word without its first n bytes.
func (w word) after(n int) word {
	w.text = w.text[n:]
	return w
}

// shell reads the words of a script. It knows quotes, comments, lines that go on, variables and integer arithmetic.
type shell struct {
	text string
	pos  int
	line int
	vars map[string]word

	expanded int // bytes that variables were replaced by
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// array is a word that stands for the words of a list, "${ARGS[@]}".
var array = regexp.MustCompile(`^"?\$\{([A-Za-z_][A-Za-z0-9_]*)\[@\]\}"?$`)

// bare is a word that is a variable and nothing else, without quotes.
var bare = regexp.MustCompile(`^\$(\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*)$`)

// shellWords returns the words of the commands of a script and the ends of these. Assignments of variables and of lists of
// words, ARGS=(a b), are taken out; heads of compound commands and redirections are words.
func shellWords(text string) ([]word, error) {
	s := &shell{text: strings.ReplaceAll(text, "\r\n", "\n"), line: 1, vars: map[string]word{}}
	lists := map[string][]word{}
	var words []word
	onlyArguments := strings.HasPrefix(strings.TrimSpace(text), "-") // then the end of a line ends nothing
	list := ""                                                       // whose words are read
	head := true                                                     // of a command: only variables were assigned so far
	branches, after := 0, false                                      // open if, case, loops; after && or ||
	for {
		switch c := s.peek(); {
		case c == 0:
			return words, nil
		case c == ')' && list != "":
			s.next()
			list = ""
		case c == ' ' || c == '\t' || c == '(' || c == ')' || c == '\n' && list != "":
			s.next()
		case c == '\n' || c == ';' || c == '&' || c == '|':
			s.next()
			if !onlyArguments || c != '\n' {
				words = append(words, word{end: true})
				head, after = true, c == '&' || c == '|'
			}
		case strings.HasPrefix(s.text[s.pos:], "\\\n"):
			s.next()
			s.next()
		case c == '#':
			for s.peek() != 0 && s.peek() != '\n' {
				s.next()
			}
		default:
			start := s.pos
			w, err := s.word()
			if err != nil {
				return nil, err
			}
			raw := s.text[start:s.pos]
			if m := array.FindStringSubmatch(raw); m != nil && list == "" {
				if s.expanded += 16 * len(lists[m[1]]); s.expanded > maxExpanded {
					return nil, fmt.Errorf("line %d: lists stand for too many words", s.line)
				}
				words = append(words, lists[m[1]]...)
				head = false
				continue
			}
			if bare.MatchString(raw) && list == "" && strings.ContainsAny(w.text, " \t\n") { // the shell splits it
				parts := strings.Fields(w.text)
				if s.expanded += 16 * len(parts); s.expanded > maxExpanded {
					return nil, fmt.Errorf("line %d: variables stand for too many words", s.line)
				}
				for _, part := range parts {
					words = append(words, word{text: part, unknown: w.unknown})
				}
				head = false
				continue
			}
			name, value, assigns := strings.Cut(raw, "=")
			if assigns && (branches > 0 || after) && w.unknown == "" { // another branch may be the one that is run
				w.unknown = "set in a branch of the script"
			}
			switch {
			case list != "":
				lists[list] = append(lists[list], w)
			case head && opens[raw]:
				branches++
			case head && closes[raw]:
				branches = max(0, branches-1)
			case head && (raw == "then" || raw == "else" || raw == "do"):
			case head && assigns && value == "" && s.peek() == '(' && variable.MatchString(strings.TrimSuffix(name, "+")):
				s.next()
				list = strings.TrimSuffix(name, "+")
				if list == name {
					lists[list] = nil
				}
			case head && assigns && variable.MatchString(name):
				s.vars[name] = w.after(len(name) + 1)
			case head && (raw == "export" || raw == "local" || raw == "readonly"):
			default:
				head = false
				words = append(words, w)
			}
		}
	}
}

// The words that open and close what may be run or not.
var (
	opens  = map[string]bool{"if": true, "case": true, "for": true, "while": true, "until": true, "select": true}
	closes = map[string]bool{"fi": true, "esac": true, "done": true}
)

// maxExpanded bounds what variables are replaced by, in bytes: one may be made of others.
const maxExpanded = 8 << 20

func (s *shell) peek() byte {
	if s.pos >= len(s.text) {
		return 0
	}
	return s.text[s.pos]
}

func (s *shell) next() byte {
	c := s.peek()
	if s.pos < len(s.text) {
		s.pos++
	}
	if c == '\n' {
		s.line++
	}
	return c
}

// word reads one word, with its quotes taken off and its variables replaced.
func (s *shell) word() (word, error) {
	var b strings.Builder
	var w word
	line := s.line
	expand := func() error {
		v, err := s.expansion()
		if v.unknown != "" && w.unknown == "" {
			w.unknown = v.unknown
		}
		b.WriteString(v.text)
		if s.expanded += len(v.text); s.expanded > maxExpanded && err == nil {
			err = fmt.Errorf("line %d: variables stand for more than %d bytes", s.line, maxExpanded)
		}
		return err
	}
	for {
		switch c := s.peek(); c {
		case 0, ' ', '\t', '\n', ';', '|', '&', '(', ')':
			w.text = b.String()
			return w, nil
		case '\'':
			s.next()
			w.quoted = w.quoted || b.Len() == 0
			end := strings.IndexByte(s.text[s.pos:], '\'')
			if end < 0 {
				return w, fmt.Errorf("line %d: a quote ' without its end", line)
			}
			for range end {
				b.WriteByte(s.next())
			}
			s.next()
		case '"':
			s.next()
			w.quoted = w.quoted || b.Len() == 0
			for s.peek() != '"' {
				switch c := s.peek(); {
				case c == 0:
					return w, fmt.Errorf("line %d: a quote \" without its end", line)
				case c == '\\' && s.pos+1 < len(s.text) && strings.IndexByte("\"\\$`\n", s.text[s.pos+1]) >= 0:
					s.next()
					if e := s.next(); e != '\n' {
						b.WriteByte(e)
					}
				case c == '$' || c == '`':
					if err := expand(); err != nil {
						return w, err
					}
				default:
					b.WriteByte(s.next())
				}
			}
			s.next()
		case '\\':
			s.next()
			if c := s.next(); c != '\n' && c != 0 {
				b.WriteByte(c)
			}
		case '$', '`':
			if err := expand(); err != nil {
				return w, err
			}
		default:
			b.WriteByte(s.next())
		}
	}
}

// expansion reads what begins with $ or `.
func (s *shell) expansion() (word, error) {
	start, line := s.pos, s.line
	ends := func(open, end string) (string, error) { // the text between, brackets paired
		s.pos += len(open)
		depth := 1
		for i := s.pos; i < len(s.text); i++ {
			switch {
			case strings.HasPrefix(s.text[i:], end) && depth == 1:
				inner := s.text[s.pos:i]
				s.line += strings.Count(s.text[start:i], "\n")
				s.pos = i + len(end)
				return inner, nil
			case s.text[i] == open[len(open)-1]:
				depth++
			case s.text[i] == end[0]:
				depth--
			}
		}
		return "", fmt.Errorf("line %d: %s without its end", line, open)
	}
	unknown := func() word { return word{unknown: s.text[start:s.pos]} }
	rest := s.text[s.pos:]
	switch {
	case strings.HasPrefix(rest, "$(("):
		inner, err := ends("$((", "))")
		if err != nil {
			return word{}, err
		}
		if x, ok := s.arithmetic(inner); ok {
			return word{text: strconv.FormatInt(x, 10)}, nil
		}
		return unknown(), nil
	case strings.HasPrefix(rest, "$("):
		_, err := ends("$(", ")")
		return unknown(), err
	case strings.HasPrefix(rest, "`"):
		s.pos++
		end := strings.IndexByte(s.text[s.pos:], '`')
		if end < 0 {
			return word{}, fmt.Errorf("line %d: ` without its end", line)
		}
		s.line += strings.Count(s.text[s.pos:s.pos+end], "\n")
		s.pos += end + 1
		return unknown(), nil
	case strings.HasPrefix(rest, "${"):
		inner, err := ends("${", "}")
		if err != nil {
			return word{}, err
		}
		name, otherwise, hasDefault := strings.Cut(inner, ":-")
		if v, ok := s.vars[name]; ok && (v.text != "" || v.unknown != "" || !hasDefault) {
			return v, nil
		}
		if hasDefault && variable.MatchString(name) && !strings.ContainsAny(otherwise, "$`\\") {
			return word{text: strings.Trim(otherwise, `"'`)}, nil
		}
		return unknown(), nil
	}
	s.pos++ // $
	for s.pos < len(s.text) && (isWordByte(s.text[s.pos]) || s.pos == start+1 && strings.IndexByte("@*#?!-", s.text[s.pos]) >= 0) {
		s.pos++
		if !isWordByte(s.text[s.pos-1]) {
			break
		}
	}
	name := s.text[start+1 : s.pos]
	if name == "" {
		return word{text: "$"}, nil
	}
	if v, ok := s.vars[name]; ok {
		return v, nil
	}
	return unknown(), nil
}

func isWordByte(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// arithmetic evaluates sums and products of whole numbers and variables, in brackets; ok is false for all else.
func (s *shell) arithmetic(text string) (x int64, ok bool) {
	if len(text) > 256 {
		return 0, false
	}
	a := &sum{text: text, vars: s.vars}
	x = a.terms()
	a.space()
	return x, !a.bad && a.pos == len(a.text)
}

type sum struct {
	text string
	pos  int
	bad  bool
	vars map[string]word
}

func (a *sum) space() {
	for a.pos < len(a.text) && strings.IndexByte(" \t\n", a.text[a.pos]) >= 0 {
		a.pos++
	}
}

// takes consumes the next byte if it is one of these.
func (a *sum) takes(bytes string) byte {
	a.space()
	if a.pos < len(a.text) && strings.IndexByte(bytes, a.text[a.pos]) >= 0 {
		a.pos++
		return a.text[a.pos-1]
	}
	return 0
}

func (a *sum) terms() int64 {
	x := a.factors()
	for !a.bad {
		switch a.takes("+-") {
		case '+':
			x += a.factors()
		case '-':
			x -= a.factors()
		default:
			return x
		}
	}
	return 0
}

func (a *sum) factors() int64 {
	x := a.factor()
	for !a.bad {
		op := a.takes("*/%")
		if op == 0 {
			return x
		}
		y := a.factor()
		switch {
		case op == '*' && (y == 0 || max(x, -x) <= math.MaxInt32 && max(y, -y) <= math.MaxInt32):
			x *= y
		case op == '/' && y > 0:
			x /= y
		case op == '%' && y > 0:
			x %= y
		default:
			a.bad = true
		}
	}
	return 0
}

func (a *sum) factor() int64 {
	if a.takes("(") != 0 {
		x := a.terms()
		a.bad = a.bad || a.takes(")") == 0
		return x
	}
	a.takes("$")
	a.takes("{")
	a.space()
	start := a.pos
	for a.pos < len(a.text) && isWordByte(a.text[a.pos]) {
		a.pos++
	}
	text := a.text[start:a.pos]
	a.takes("}")
	if v, is := a.vars[text]; is && v.unknown == "" {
		text = v.text
	}
	x, err := strconv.ParseInt(text, 10, 32)
	a.bad = a.bad || err != nil || len(text) > 1 && text[0] == '0'
	return x
}
