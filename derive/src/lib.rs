//! `#[derive(Accesses)]` for structs with named fields, re-exported by raddle's feature `derive`.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::{
    Data, DeriveInput, Error, Fields, GenericParam, Ident, Lifetime, LifetimeParam, Type, parse_macro_input,
    visit_mut::VisitMut,
};

/// Allows a struct to declare an operation's accesses. The operation's function receives a struct of references.
///
/// Every field must itself be a declaration, such as a `Read`, a `Write`, a `Cx`, a tuple, an array, a `Vec` or an
/// `Option` of declarations, or another struct with this derive. For a struct `Step`, the operation's function receives
/// a `StepRefs` with the same fields and visibility or, if accesses yield guards, a `StepGuards`. A struct cannot be
/// more public than its fields' types.
#[proc_macro_derive(Accesses)]
pub fn derive_accesses(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// A visitor that replaces the struct's lifetimes with `'static`.
struct MakeStatic(Vec<Lifetime>);

impl VisitMut for MakeStatic {
    fn visit_lifetime_mut(&mut self, lifetime: &mut Lifetime) {
        if self.0.contains(lifetime) {
            *lifetime = Lifetime::new("'static", lifetime.span());
        }
    }
}

fn expand(input: &DeriveInput) -> Result<TokenStream, Error> {
    let name = &input.ident;
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(name, "`Accesses` can be derived for structs only"));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new_spanned(name, "`Accesses` needs named fields; a tuple of accesses needs no derive"));
    };
    if fields.named.is_empty() {
        return Err(Error::new_spanned(name, "`Accesses` needs at least one field; `()` declares no access"));
    }
    let names: Vec<&Ident> = fields.named.iter().filter_map(|field| field.ident.as_ref()).collect();
    let visibilities: Vec<_> = fields.named.iter().map(|field| &field.vis).collect();
    let types: Vec<&Type> = fields.named.iter().map(|field| &field.ty).collect();
    // An operation's references do not depend on the lifetimes of the handles to its variables.
    let mut make_static = MakeStatic(input.generics.lifetimes().map(|param| param.lifetime.clone()).collect());
    let lasting = types.iter().map(|ty| {
        let mut ty = (*ty).clone();
        make_static.visit_type_mut(&mut ty);
        ty
    });
    let lasting: Vec<Type> = lasting.collect();
    let places: Vec<_> = (0..names.len()).map(syn::Index::from).collect();

    let (impl_generics, ty_generics, where_clause) = input.generics.split_for_impl();
    let call = Lifetime::new("'__call", Span::mixed_site());
    let mut with_call = input.generics.clone();
    with_call.params.insert(0, GenericParam::Lifetime(LifetimeParam::new(call.clone())));
    let (call_generics, ..) = with_call.split_for_impl();
    // The struct of references has the original type and const parameters, and a single lifetime for all references.
    let params = input.generics.params.iter().filter(|param| !matches!(param, GenericParam::Lifetime(_))).cloned();
    let params: Vec<GenericParam> = params
        .map(|mut param| {
            make_static.visit_generic_param_mut(&mut param);
            param
        })
        .collect();
    let mut lasting_where = where_clause.cloned();
    if let Some(clause) = &mut lasting_where {
        make_static.visit_where_clause_mut(clause);
    }
    let args = params.iter().map(|param| match param {
        GenericParam::Type(param) => &param.ident,
        GenericParam::Const(param) => &param.ident,
        GenericParam::Lifetime(_) => unreachable!("lifetimes were filtered out"),
    });
    let args: Vec<_> = args.collect();
    let refs = format_ident!("{name}Refs");
    let guards = format_ident!("{name}Guards");
    let visibility = &input.vis;
    let documentation = format!("The references that an operation's function receives for [`{name}`].");
    let documentation_of_guards = format!("The guards for [`{name}`], from `acquire` or `push_future`.");
    Ok(quote! {
        #[doc = #documentation]
        #visibility struct #refs<#call, #(#params),*> #lasting_where {
            #(
                #[allow(missing_docs)]
                #visibilities #names: ::raddle::access::Refs<#call, #lasting>,
            )*
        }

        #[doc = #documentation_of_guards]
        #[allow(dead_code)]
        #visibility struct #guards<#(#params),*> #lasting_where {
            #(
                #[allow(missing_docs)]
                #visibilities #names: <#lasting as ::raddle::access::ScopedAccesses>::Guards,
            )*
        }

        #[automatically_derived]
        // SAFETY: `declare`, `capture`, `refs` and `guards` below each call the same-named method of every field.
        unsafe impl #impl_generics ::raddle::__derive::Derived for #name #ty_generics #where_clause {}

        #[automatically_derived]
        impl #call_generics ::raddle::access::AccessRefs<#call, &#call Self> for #name #ty_generics #where_clause {
            type Refs = #refs<#call, #(#args),*>;
        }

        #[automatically_derived]
        impl #impl_generics ::raddle::access::ScopedAccesses for #name #ty_generics #where_clause {
            type Guards = #guards<#(#args),*>;
            type Captured = (#(<#types as ::raddle::access::ScopedAccesses>::Captured,)*);
            const REFERS: bool = false #(|| <#types as ::raddle::access::ScopedAccesses>::REFERS)*;
            const COMMUTES: bool = false #(|| <#types as ::raddle::access::ScopedAccesses>::COMMUTES)*;
            const KIND: ::raddle::__derive::Kind =
                ::raddle::__derive::Kind::Function #(.and(<#types as ::raddle::access::ScopedAccesses>::KIND))*;

            #[inline]
            fn declare(&self, list: &mut ::raddle::__derive::List<'_>) {
                #(::raddle::access::ScopedAccesses::declare(&self.#names, list);)*
            }

            fn capture(&self) -> Self::Captured {
                (#(::raddle::access::ScopedAccesses::capture(&self.#names),)*)
            }

            #[inline]
            unsafe fn refs<#call>(
                captured: &Self::Captured,
                cx: &#call ::raddle::OpContext<#call>,
            ) -> ::raddle::access::Refs<#call, Self>
            where
                Self: #call,
            {
                #refs {
                    // SAFETY: the caller's obligations hold for each field, since the field's accesses were declared
                    // and captured with the struct.
                    #(#names: unsafe { <#types as ::raddle::access::ScopedAccesses>::refs(&captured.#places, cx) },)*
                }
            }

            unsafe fn guards(captured: &Self::Captured, share: &::raddle::__derive::Share) -> Self::Guards {
                #guards {
                    // SAFETY: the caller's obligations hold for each field, since the field's accesses were declared
                    // and captured with the struct.
                    #(
                        #names: unsafe {
                            <#types as ::raddle::access::ScopedAccesses>::guards(&captured.#places, share)
                        },
                    )*
                }
            }
        }
    })
}
