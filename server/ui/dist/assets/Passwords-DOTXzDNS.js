import{$ as e,G as t,J as n,L as r,T as i,at as a,it as o,j as s,k as c,nt as l,ot as u,rt as d}from"./disclose-version-CzEB9y81.js";import{D as f,S as p}from"./index-Crbb1wGm.js";import{n as m,t as h}from"./Things-CR20vM47.js";var g=s(`<div class="page"><div><!> <p class="lede">What the passwords look like that engines make, those of LDAP for instance.</p></div> <!></div>`);function _(s,_){d(_,!0);let v=`sys/policies/password`,y=new f([v,`${v}/*`,`${v}/*/generate`]),b={path:`password`,title:`Password policies`,one:`password policy`,many:`password policies`,gone:`Engines that name it cannot make passwords any more.`,fields:[{name:`policy`,label:`Policy`,kind:`area`,rows:12,required:!0,initial:`length = 20

rule "charset" {
  charset = "abcdefghijklmnopqrstuvwxyz"
}

rule "charset" {
  charset   = "0123456789"
  min-chars = 2
}
`,help:`HCL: a length, and charsets with how many of their characters there must be.`}]};var x=g(),S=t(x),C=t(S);p(C,{text:`Password policies`}),o(2),a(S);var w=n(S,2),T=t=>{{let n=(e,t=u)=>{m(e,{label:`Generate a password`,request:()=>({method:`GET`,path:`${v}/${t()}/generate`}),fields:{password:{title:`Password`,secret:!0}}})},i=e(()=>y.can(`${v}/*/generate`,`read`));h(t,{base:`sys/policies/`,get kind(){return b},get may(){return y},get opens(){return r(i)},more:n,$$slots:{more:!0}})}};i(w,e=>{y.known&&e(T)}),a(x),c(s,x),l()}export{_ as default};