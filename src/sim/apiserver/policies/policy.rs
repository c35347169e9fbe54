//! A policy with its bindings: read, checked, and asked about a request.

use serde_json::Value;

use super::asked::Asked;
use super::compile::{Expression, Names, Variable};
use super::input::{Input, Scope};
use super::matching::Match;
use crate::apiserver::auth::strings;
use crate::apiserver::failure::Cause;
use crate::apiserver::object::{meta, text};
use crate::apiserver::store::Store;

/// Longest message that an expression may give.
const MESSAGE_LIMIT: usize = 5 * 1024;

struct Validation {
    expression: Expression,
    message: String,
    message_expression: Option<Expression>,
    reason: String,
}

struct Binding {
    name: String,
    matches: Option<Match>,
}

/// A policy that a binding has put in force.
pub(super) struct Policy {
    pub(super) name: String,
    pub(super) matches: Match,
    /// Whether an error denies the request.
    fails: bool,
    conditions: Vec<Expression>,
    variables: Vec<Variable>,
    validations: Vec<Validation>,
    bindings: Vec<Binding>,
}

/// Why a request is denied.
pub(super) struct Denial {
    pub(super) message: String,
    pub(super) reason: String,
}

impl Policy {
    /// A policy with those of its bindings that deny; none where no binding does.
    pub(super) fn read<'a>(policy: &Value, bindings: impl Iterator<Item = &'a Value>) -> Option<Self> {
        let bindings: Vec<Binding> = bindings
            .filter(|binding| strings(&binding["spec"]["validationActions"]).iter().any(|action| action == "Deny"))
            .map(|binding| Binding {
                name: meta(binding, "name").to_owned(),
                matches: Some(&binding["spec"]["matchResources"]).filter(|m| m.is_object()).map(Match::read),
            })
            .collect();
        if bindings.is_empty() {
            return None;
        }
        let spec = &policy["spec"];
        let (conditions, variables, validations) = expressions(spec);
        Some(Self {
            name: meta(policy, "name").to_owned(),
            matches: Match::read(&spec["matchConstraints"]),
            fails: spec["failurePolicy"] != "Ignore",
            conditions,
            variables,
            validations,
            bindings,
        })
    }

    /// The name of the first binding that matches.
    pub(super) fn binding(&self, asked: &Asked<'_>, store: &Store) -> Option<&str> {
        let fits = |binding: &&Binding| binding.matches.as_ref().is_none_or(|own| own.matches(asked, store));
        self.bindings.iter().find(fits).map(|binding| binding.name.as_str())
    }

    /// Why this policy denies the request, if it does.
    pub(super) fn denial(&self, input: &Input<'_>) -> Option<Denial> {
        let failed = |message: String| self.fails.then(|| Denial { message, reason: String::new() });
        let scope = Scope::of_conditions(input);
        let mut errors = Vec::new();
        for condition in &self.conditions {
            match scope.evaluate(condition) {
                // One that is false outweighs the errors of others.
                Ok(cel::Value::Bool(false)) => return None,
                Ok(_) => {}
                Err(error) => errors.push(error),
            }
        }
        match errors.as_slice() {
            [] => {}
            [one] => return failed(one.clone()),
            several => return failed(format!("[{}]", several.join(", "))),
        }
        let scope = Scope::of_validations(input, &self.variables);
        self.validations.iter().find_map(|validation| match scope.evaluate(&validation.expression) {
            Ok(cel::Value::Bool(true)) => None,
            Ok(_) => Some(Denial { message: validation.message(&scope), reason: validation.reason.clone() }),
            Err(error) => failed(error),
        })
    }
}

impl Validation {
    fn message(&self, scope: &Scope<'_>) -> String {
        let made = match self.message_expression.as_ref().map(|expression| scope.evaluate(expression)) {
            Some(Ok(cel::Value::String(text))) => text.trim().to_owned(),
            _ => String::new(),
        };
        let fits = !made.is_empty() && made.len() <= MESSAGE_LIMIT && !made.contains('\n');
        match (fits, self.message.trim()) {
            (true, _) => made,
            (false, "") => format!("failed expression: {}", self.expression.text.trim()),
            (false, message) => message.to_owned(),
        }
    }
}

fn list<'a>(spec: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    spec[key].as_array().into_iter().flatten()
}

/// Match conditions, variables and validations. A variable sees those before it.
fn expressions(spec: &Value) -> (Vec<Expression>, Vec<Variable>, Vec<Validation>) {
    let early = Names { variables: None, authorizer: true };
    let conditions = list(spec, "matchConditions").map(|item| Expression::read(item, "expression", early)).collect();
    let mut known = Vec::new();
    let mut variables = Vec::new();
    for item in list(spec, "variables") {
        let names = Names { variables: Some(&known), authorizer: true };
        let expression = Expression::read(item, "expression", names);
        let name = text(item, &["name"]).to_owned();
        known.push(name.clone());
        variables.push(Variable { name, expression });
    }
    let composed = (!known.is_empty()).then_some(known.as_slice());
    let names = Names { variables: composed, authorizer: true };
    let validations = list(spec, "validations")
        .map(|item| Validation {
            expression: Expression::read(item, "expression", names),
            message: text(item, &["message"]).to_owned(),
            message_expression: item["messageExpression"]
                .is_string()
                .then(|| Expression::read(item, "messageExpression", Names { authorizer: false, ..names })),
            reason: text(item, &["reason"]).to_owned(),
        })
        .collect();
    (conditions, variables, validations)
}

/// What is wrong with a policy.
pub fn validate(policy: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let spec = &policy["spec"];
    let supported = |field: &str, value: &Value, allowed: &[&str]| {
        let there = value.as_str().is_none_or(|word| allowed.contains(&word));
        let allowed: Vec<String> = allowed.iter().map(|&word| word.to_owned()).collect();
        (!there).then(|| Cause::unsupported(field, value, &allowed))
    };
    causes.extend(supported("spec.failurePolicy", &spec["failurePolicy"], &["Fail", "Ignore"]));
    if !spec["paramKind"].is_null() {
        causes.push(Cause::forbidden("spec.paramKind", "the simulated API server knows no parameters"));
    }
    if !spec["matchConstraints"].is_object() {
        causes.push(Cause::required("spec.matchConstraints", ""));
    }
    if list(&spec["matchConstraints"], "resourceRules").next().is_none() {
        causes.push(Cause::required("spec.matchConstraints.resourceRules", ""));
    }
    let (conditions, variables, validations) = expressions(spec);
    let mut check = |at: String, expression: &Expression, needless: &str| match &expression.program {
        _ if expression.text.trim().is_empty() => causes.push(Cause::required(at, needless)),
        Err(why) => {
            let shown = Value::String(expression.text.clone());
            causes.push(Cause::invalid(at, &shown, &format!("compilation failed: {why}")));
        }
        Ok(_) => {}
    };
    for (index, condition) in conditions.iter().enumerate() {
        check(format!("spec.matchConditions[{index}].expression"), condition, "");
    }
    for (index, variable) in variables.iter().enumerate() {
        check(format!("spec.variables[{index}].expression"), &variable.expression, "expression is not specified");
    }
    for (index, validation) in validations.iter().enumerate() {
        let at = format!("spec.validations[{index}]");
        check(format!("{at}.expression"), &validation.expression, "expression is not specified");
        if let Some(message) = &validation.message_expression {
            check(format!("{at}.messageExpression"), message, "must be non-empty if specified");
        }
    }
    if validations.is_empty() && list(spec, "auditAnnotations").next().is_none() {
        let why = "validations or auditAnnotations must contain at least one item";
        causes.push(Cause::required("spec.validations", why));
        causes.push(Cause::required("spec.auditAnnotations", why));
    }
    for (index, validation) in list(spec, "validations").enumerate() {
        let reasons = ["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"];
        causes.extend(supported(&format!("spec.validations[{index}].reason"), &validation["reason"], &reasons));
    }
    causes
}

/// What is wrong with a binding.
pub fn validate_binding(binding: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let spec = &binding["spec"];
    if text(spec, &["policyName"]).is_empty() {
        causes.push(Cause::required("spec.policyName", ""));
    }
    if !spec["paramRef"].is_null() {
        causes.push(Cause::forbidden("spec.paramRef", "the simulated API server knows no parameters"));
    }
    let actions = strings(&spec["validationActions"]);
    if actions.is_empty() {
        causes.push(Cause::required("spec.validationActions", "at least one validation action is required"));
    }
    if ["Deny", "Warn"].iter().all(|action| actions.iter().any(|a| a == action)) {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API \
                   response and headers serves no purpose)";
        causes.push(Cause::invalid("spec.validationActions", &spec["validationActions"], why));
    }
    let allowed = ["Audit", "Deny", "Warn"].map(str::to_owned);
    for (index, action) in actions.iter().enumerate().filter(|(_, action)| !allowed.contains(action)) {
        let at = format!("spec.validationActions[{index}]");
        causes.push(Cause::unsupported(at, &Value::String(action.clone()), &allowed));
    }
    causes
}
