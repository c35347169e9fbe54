//! `authorizer` in an expression: the chain from a group or a path to a decision about the user who asks.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use cel::common::types::{CelBool, CelString, STRING_TYPE, Type};
use cel::common::value::{CowVal, StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError};

use crate::apiserver::auth::{Users, path_allowed};
use crate::apiserver::request::Target;
use crate::apiserver::store::Store;
use crate::apiserver::user::User;

static TYPE: Type = Type::new_unspecified_type("kubernetes.authorization.Authorizer");

/// Whom and what a decision is looked up in.
struct Grounds {
    users: Arc<Users>,
    store: Arc<Store>,
}

/// A link of the chain.
#[derive(Clone)]
pub(super) struct Authorizer {
    grounds: Arc<Grounds>,
    user: User,
    stage: Stage,
}

#[derive(Debug, Clone)]
enum Stage {
    Start,
    Path(String),
    Group(String),
    Resource(Target),
    Decided(bool),
}

impl Authorizer {
    pub(super) fn new(users: &Arc<Users>, store: &Arc<Store>, user: &User) -> Self {
        let grounds = Arc::new(Grounds { users: Arc::clone(users), store: Arc::clone(store) });
        Self { grounds, user: user.clone(), stage: Stage::Start }
    }

    /// The check of the resource that is asked for.
    pub(super) fn of_resource(&self, target: Target) -> Self {
        Self { stage: Stage::Resource(target), ..self.clone() }
    }

    /// The next link; none where the chain does not go on like this.
    fn then(&self, call: &str, word: &str) -> Option<Self> {
        let word = word.to_owned();
        let stage = match (&self.stage, call) {
            (Stage::Start, "path") => Stage::Path(word),
            (Stage::Start, "group") => Stage::Group(word),
            (Stage::Group(group), "resource") => {
                Stage::Resource(Target { group: group.clone(), resource: word, ..Target::default() })
            }
            (Stage::Resource(target), "check") => {
                let target = Target { verb: word, ..target.clone() };
                Stage::Decided(self.grounds.users.allowed(&self.user, &target, &self.grounds.store))
            }
            (Stage::Path(path), "check") => Stage::Decided(path_allowed(&self.user, &word, path, &self.grounds.store)),
            (Stage::Resource(target), field) => {
                let mut target = target.clone();
                match field {
                    "subresource" => target.subresource = word,
                    "namespace" => target.namespace = word,
                    "name" => target.name = word,
                    _ => return None,
                }
                Stage::Resource(target)
            }
            _ => return None,
        };
        Some(Self { stage, ..self.clone() })
    }
}

impl fmt::Debug for Authorizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "authorizer of {}: {:?}", self.user.name, self.stage)
    }
}

impl Val for Authorizer {
    fn get_type(&self) -> &Type {
        &TYPE
    }

    fn cel_type() -> &'static Type {
        &TYPE
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Authorizer {}

type Args<'b, 'v> = Vec<CowVal<'b, 'v>>;
type Answer<'b, 'v> = Result<CowVal<'b, 'v>, ExecutionError>;

fn link<'b, 'v>(call: &str, args: &Args<'b, 'v>) -> Answer<'b, 'v> {
    let from = args.first().and_then(|value| value.downcast_ref::<Authorizer>());
    let word = args.get(1).and_then(|value| value.downcast_ref::<CelString<'_>>());
    let next = from.zip(word).and_then(|(from, word)| from.then(call, word.inner()));
    next.map(CowVal::owned).ok_or_else(|| ExecutionError::no_such_member_overload(call, vec![TYPE.name().to_owned()]))
}

fn decision(call: &str, args: &Args<'_, '_>) -> Result<bool, ExecutionError> {
    match args.first().and_then(|value| value.downcast_ref::<Authorizer>()).map(|from| &from.stage) {
        Some(Stage::Decided(allowed)) => Ok(*allowed),
        _ => Err(ExecutionError::no_such_member_overload(call, vec![TYPE.name().to_owned()])),
    }
}

/// Declares the functions of the chain.
pub(super) fn library(env: &mut Env) -> Result<(), DeclarationError> {
    macro_rules! links {
        ($($name:literal)*) => {$(
            env.add_member_overload(
                $name,
                concat!("authorizer_", $name),
                TYPE.to_owned(),
                vec![STRING_TYPE],
                |args| link($name, &args),
            )?;
        )*};
    }
    links!("path" "group" "resource" "subresource" "namespace" "name" "check");
    env.add_member_overload("allowed", "decision_allowed", TYPE.to_owned(), Vec::new(), |args| {
        Ok(CowVal::owned(CelBool::from(decision("allowed", &args)?)))
    })?;
    env.add_member_overload("errored", "decision_errored", TYPE.to_owned(), Vec::new(), |args| {
        decision("errored", &args).map(|_| CowVal::owned(CelBool::from(false)))
    })?;
    for (name, id) in [("error", "decision_error"), ("reason", "decision_reason")] {
        env.add_member_overload(name, id, TYPE.to_owned(), Vec::new(), |args| {
            decision("reason", &args).map(|_| CowVal::owned(CelString::from(String::new())))
        })?;
    }
    Ok(())
}
