package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strconv"
)

// A site is one change to one file: the bytes [From, To) become With.
type site struct {
	File     string `json:"file"` // relative to the root of the module
	Line     int    `json:"line"`
	From     int    `json:"from"`
	To       int    `json:"to"`
	With     string `json:"with"`
	Operator string `json:"operator"`
}

// id names a site as long as its file does not change.
func (s site) id() string { return fmt.Sprintf("%s:%d:%d:%s", s.File, s.From, s.To, s.With) }

// apply returns the mutated source.
func (s site) apply(source []byte) []byte {
	return slices.Concat(source[:s.From], []byte(s.With), source[s.To:])
}

// swaps are the operators of one token: what stands in its place, by the kind of fault that it makes.
var swaps = map[token.Token][]struct {
	kind string
	with token.Token
}{
	token.ADD: {{"arithmetic", token.SUB}}, token.SUB: {{"arithmetic", token.ADD}},
	token.MUL: {{"arithmetic", token.QUO}}, token.QUO: {{"arithmetic", token.MUL}}, token.REM: {{"arithmetic", token.MUL}},
	token.LSS: {{"boundary", token.LEQ}, {"comparison", token.GEQ}}, token.LEQ: {{"boundary", token.LSS}, {"comparison", token.GTR}},
	token.GTR: {{"boundary", token.GEQ}, {"comparison", token.LEQ}}, token.GEQ: {{"boundary", token.GTR}, {"comparison", token.LSS}},
	token.EQL: {{"comparison", token.NEQ}}, token.NEQ: {{"comparison", token.EQL}},
	token.LAND: {{"logic", token.LOR}}, token.LOR: {{"logic", token.LAND}},
	token.SHL: {{"arithmetic", token.SHR}}, token.SHR: {{"arithmetic", token.SHL}},
	token.ADD_ASSIGN: {{"arithmetic", token.SUB_ASSIGN}}, token.SUB_ASSIGN: {{"arithmetic", token.ADD_ASSIGN}},
	token.MUL_ASSIGN: {{"arithmetic", token.QUO_ASSIGN}}, token.QUO_ASSIGN: {{"arithmetic", token.MUL_ASSIGN}},
	token.INC: {{"arithmetic", token.DEC}}, token.DEC: {{"arithmetic", token.INC}},
}

// sitesOf lists every site of a parsed and type-checked file, in the order of the source.
func sitesOf(fset *token.FileSet, f *ast.File, name string, info *types.Info) []site {
	var all []site
	add := func(kind string, from, to token.Pos, with string) {
		all = append(all, site{name, fset.Position(from).Line, fset.Position(from).Offset, fset.Position(to).Offset, with, kind})
	}
	swap := func(at token.Pos, op token.Token) {
		for _, s := range swaps[op] {
			add(s.kind, at, at+token.Pos(len(op.String())), s.with.String())
		}
	}
	negate := func(cond ast.Expr) {
		switch cond.(type) {
		case *ast.BinaryExpr, *ast.UnaryExpr: // negated by their own operators
		default:
			add("negation", cond.Pos(), cond.Pos(), "!")
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BinaryExpr:
			if t, ok := info.TypeOf(n.X).Underlying().(*types.Basic); n.Op == token.ADD && ok && t.Info()&types.IsString != 0 {
				return true
			}
			swap(n.OpPos, n.Op)
		case *ast.AssignStmt:
			swap(n.TokPos, n.Tok)
			if n.Tok != token.DEFINE {
				add("dropped statement", n.Pos(), n.End(), "")
			}
		case *ast.IncDecStmt:
			swap(n.TokPos, n.Tok)
			add("dropped statement", n.Pos(), n.End(), "")
		case *ast.ExprStmt:
			add("dropped statement", n.Pos(), n.End(), "")
		case *ast.BranchStmt:
			if n.Tok != token.FALLTHROUGH && n.Tok != token.GOTO {
				add("dropped statement", n.Pos(), n.End(), "")
			}
		case *ast.IfStmt:
			negate(n.Cond)
		case *ast.BasicLit:
			for _, with := range neighbours(n) {
				add("constant", n.Pos(), n.End(), with)
			}
		case *ast.UnaryExpr:
			if n.Op == token.SUB {
				add("arithmetic", n.Pos(), n.X.Pos(), "")
			}
			if n.Op == token.NOT {
				add("negation", n.Pos(), n.X.Pos(), "")
			}
		case *ast.Ident:
			if o := info.Uses[n]; o != nil && o.Pkg() == nil { // predeclared
				if with := map[string]string{"true": "false", "false": "true", "min": "max", "max": "min"}[n.Name]; with != "" {
					add(map[bool]string{true: "constant", false: "boundary"}[len(n.Name) > 3], n.Pos(), n.End(), with)
				}
			}
		}
		return true
	})
	slices.SortStableFunc(all, func(a, b site) int { return a.From - b.From })
	return all
}

// neighbours of a number: one more and one less, a tenth more of a fraction.
func neighbours(l *ast.BasicLit) []string {
	switch l.Kind {
	case token.INT:
		if v, err := strconv.ParseInt(l.Value, 0, 64); err == nil && v > 0 {
			return []string{fmt.Sprint(v + 1), fmt.Sprint(v - 1)}
		}
		return []string{"1"}
	case token.FLOAT:
		return []string{"(1.1*" + l.Value + ")"}
	}
	return nil
}
