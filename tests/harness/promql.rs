//! For tests: what the expressions of Prometheus ask for.

use std::collections::BTreeSet;

use promql_parser::parser::{Expr, LabelModifier, VectorSelector};

/// A metric that an expression reads, and the labels that it must have for that.
pub type Asked = (String, BTreeSet<String>);

/// Every metric below an expression. An aggregate asks for the labels that it keeps, of everything below.
pub fn asked(expr: &Expr) -> BTreeSet<Asked> {
    let mut found = BTreeSet::new();
    collect(expr, &BTreeSet::new(), &mut found);
    found
}

fn collect(expr: &Expr, kept: &BTreeSet<String>, found: &mut BTreeSet<Asked>) {
    let mut one = |selector: &VectorSelector| {
        let matched = selector.matchers.matchers.iter().map(|matcher| matcher.name.clone());
        let labels = kept.iter().cloned().chain(matched).collect();
        found.extend(selector.name.clone().map(|name| (name, labels)));
    };
    match expr {
        Expr::Aggregate(aggregate) => {
            let kept = match &aggregate.modifier {
                Some(LabelModifier::Include(labels)) => labels.labels.iter().cloned().collect(),
                _ => BTreeSet::new(),
            };
            collect(&aggregate.expr, &kept, found);
        }
        Expr::Unary(unary) => collect(&unary.expr, kept, found),
        Expr::Binary(binary) => {
            // What stands in for nothing has no labels.
            let sides = [&binary.lhs, &binary.rhs];
            sides.into_iter().for_each(|side| collect(side, kept, found));
        }
        Expr::Paren(paren) => collect(&paren.expr, kept, found),
        Expr::Subquery(query) => collect(&query.expr, kept, found),
        Expr::VectorSelector(selector) => one(selector),
        Expr::MatrixSelector(matrix) => one(&matrix.vs),
        Expr::Call(call) => call.args.args.iter().for_each(|arg| collect(arg, kept, found)),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => {}
    }
}
