! torchferry: verified TorchScript archives in Fortran 2008, over the C interface torchferry.h.
!
!   type(tf_model) :: model
!   real(real64), target :: strain(6, n), stress(6, n)
!
!   call model%load("steel.pt", status)
!   call model%call([tf_view(strain)], [tf_view(stress)], status)
!   if (status /= TF_OK) print *, model%last_error()
!
! The batch is the last index: a variable of the contract's shape [6] is strain(6, n), one of shape [3, 3] is
! gradient(3, 3, n) with gradient(i, j, e) the component i, j of element e, a scalar is time(n). That is how Fortran
! lays memory out, and nothing is transposed or copied on the way in. Array sections are read and written in place.
!
! Arrays must have the attribute target: what tf_view returns points to them. Nothing here stops the program; every
! procedure that can fail has a status.
module torchferry
  use, intrinsic :: iso_c_binding
  use torchferry_arrays
  use torchferry_c
  implicit none
  private

  public :: tf_model, tf_array, tf_variable, tf_view, tf_status_name, tf_library_version
  public :: TF_ABI_VERSION, TF_OK, TF_ERROR_INTERNAL, TF_ERROR_ARGUMENT, TF_ERROR_HANDLE, TF_ERROR_FILE, &
    TF_ERROR_ARCHIVE, TF_ERROR_NAME, TF_ERROR_COUNT, TF_ERROR_SHAPE, TF_ERROR_DTYPE, TF_ERROR_DEVICE, &
    TF_ERROR_STRIDE, TF_ERROR_BUFFER, TF_ERROR_MODEL, TF_ERROR_UNAVAILABLE, TF_ERROR_MEMORY, TF_ERROR_FROZEN, &
    TF_ERROR_MISMATCH, TF_ERROR_ENVELOPE, TF_NOT_CONVERGED, TF_ERROR_TRUST, TF_ERROR_SIGNATURE, &
    TF_FLOAT64, TF_FLOAT32, TF_INT64, TF_INT32
  public :: TF_ENGINE_TORCHSCRIPT, TF_ENGINE_KERNEL, TF_TRUST_GRAPHS, TF_TRUST_NATIVE
  public :: TF_ENVELOPE_OFF, TF_ENVELOPE_WARN, TF_ENVELOPE_ERROR, tf_last_warning

  ! What the contract says of a variable; shape is without the batch, -1 - k for the open size k. by: the input of a
  ! Jacobian block.
  type :: tf_variable
    character(:), allocatable :: name, by
    integer(c_int32_t) :: dtype = 0
    integer(c_int64_t), allocatable :: shape(:)
  end type

  type :: method_variables
    character(:), allocatable :: name
    type(tf_variable), allocatable :: inputs(:), outputs(:)
  end type

  ! One model may be called from several threads. Assigning it makes a second name for the same one.
  type :: tf_model
    private
    type(c_ptr) :: handle = c_null_ptr
    integer :: batch_ndim = 1
    type(method_variables), allocatable :: methods(:)
  contains
    procedure :: load => model_load
    procedure :: close => model_close
    procedure :: last_error => model_last_error
    procedure :: name => model_name
    procedure :: engine => model_engine
    procedure :: contract_json => model_contract_json
    procedure :: input_count => model_input_count
    procedure :: output_count => model_output_count
    procedure :: parameter_count => model_parameter_count
    procedure :: input => model_input
    procedure :: output => model_output
    procedure :: parameter => model_parameter
    procedure :: call => model_call
    procedure :: call_named => model_call_named
    procedure :: set_parameter => model_set_parameter
    procedure :: get_parameter => model_get_parameter
    procedure :: run_cases => model_run_cases
  end type

contains

  ! Checks and loads an archive to the CPU. The options are those of tf_options in torchferry.h.
  subroutine model_load(self, path, status, settable_parameters, intra_op_threads, fusion_depth, optimize, &
                        check_integrity, envelope, keep_memory, engine, trust, public_key)
    class(tf_model), intent(inout) :: self
    character(*), intent(in) :: path
    integer(c_int32_t), intent(out) :: status
    logical, intent(in), optional :: settable_parameters, optimize, check_integrity, keep_memory
    integer, intent(in), optional :: intra_op_threads, fusion_depth, envelope, engine, trust
    character(*), intent(in), optional :: public_key
    character(kind=c_char), allocatable, target :: c_path(:), c_key(:)
    type(c_options) :: options

    if (c_associated(self%handle)) status = c_tf_close(self%handle)
    self%handle = c_null_ptr
    if (allocated(self%methods)) deallocate (self%methods)
    status = c_tf_default_options(options)
    if (status /= TF_OK) return
    if (present(settable_parameters)) options%settable_parameters = merge(1, 0, settable_parameters)
    if (present(optimize)) options%optimize = merge(1, 0, optimize)
    if (present(keep_memory)) options%keep_memory = merge(1, 0, keep_memory)
    if (present(check_integrity)) options%check_integrity = merge(1, 0, check_integrity)
    if (present(intra_op_threads)) options%intra_op_threads = int(intra_op_threads, c_int32_t)
    if (present(fusion_depth)) options%fusion_depth = int(fusion_depth, c_int32_t)
    if (present(envelope)) options%envelope = int(envelope, c_int32_t)
    if (present(engine)) options%engine = int(engine, c_int32_t)
    if (present(trust)) options%trust = int(trust, c_int32_t)
    if (present(public_key)) then
      allocate (c_key, source=c_text(public_key))
      options%public_key = c_loc(c_key)
    end if
    allocate (c_path, source=c_text(path))
    status = c_tf_load(c_loc(c_path), c_null_ptr, options, self%handle)
    if (status == TF_OK) call remember_variables(self, status)
  end subroutine

  ! Asked once: each call needs the ranks.
  subroutine remember_variables(self, status)
    class(tf_model), intent(inout) :: self
    integer(c_int32_t), intent(out) :: status
    integer(c_int32_t) :: count, number, i, k
    type(c_ptr) :: text
    type(c_variable) :: variable

    status = c_tf_batch_ndim(self%handle, count)
    self%batch_ndim = int(count)
    status = c_tf_method_count(self%handle, count)
    allocate (self%methods(count))
    do i = 1, count
      status = c_tf_method_name(self%handle, i - 1, text)
      self%methods(i)%name = f_text(text)
      status = c_tf_input_count(self%handle, text, number)
      allocate (self%methods(i)%inputs(number))
      do k = 1, number
        status = c_tf_input(self%handle, text, k - 1, variable)
        self%methods(i)%inputs(k) = f_variable(variable)
      end do
      status = c_tf_output_count(self%handle, text, number)
      allocate (self%methods(i)%outputs(number))
      do k = 1, number
        status = c_tf_output(self%handle, text, k - 1, variable)
        self%methods(i)%outputs(k) = f_variable(variable)
      end do
    end do
  end subroutine

  subroutine model_close(self, status)
    class(tf_model), intent(inout) :: self
    integer(c_int32_t), intent(out) :: status
    status = c_tf_close(self%handle)
    if (status == TF_OK) self%handle = c_null_ptr
  end subroutine

  ! The text of this thread's last failure; empty where nothing failed.
  function model_last_error(self) result(text)
    class(tf_model), intent(in) :: self
    character(:), allocatable :: text
    text = f_text(c_tf_last_error(self%handle))
    if (len(text) == 0) text = f_text(c_tf_last_error(c_null_ptr))
  end function

  ! What an envelope said of this thread's last call, or an engine of its load.
  function tf_last_warning() result(text)
    character(:), allocatable :: text
    text = f_text(c_tf_last_warning())
  end function

  ! Empty where no archive is loaded.
  function model_name(self) result(text)
    class(tf_model), intent(in) :: self
    character(:), allocatable :: text
    type(c_ptr) :: name
    text = ""
    if (c_tf_name(self%handle, name) == TF_OK) text = f_text(name)
  end function

  ! What runs it: torchscript, pt2 or kernel.
  function model_engine(self) result(text)
    class(tf_model), intent(in) :: self
    character(:), allocatable :: text
    type(c_ptr) :: name
    text = ""
    if (c_tf_engine(self%handle, name) == TF_OK) text = f_text(name)
  end function

  function model_contract_json(self) result(text)
    class(tf_model), intent(in) :: self
    character(:), allocatable :: text
    type(c_ptr) :: json
    text = ""
    if (c_tf_contract_json(self%handle, json) == TF_OK) text = f_text(json)
  end function

  ! Counts are -1 where no archive is loaded or it has no such method.
  function model_input_count(self, method) result(count)
    class(tf_model), intent(in) :: self
    character(*), intent(in), optional :: method
    integer(c_int32_t) :: count
    character(kind=c_char), allocatable, target :: name(:)
    allocate (name, source=method_text(method))
    if (c_tf_input_count(self%handle, c_loc(name), count) /= TF_OK) count = -1
  end function

  function model_output_count(self, method) result(count)
    class(tf_model), intent(in) :: self
    character(*), intent(in), optional :: method
    integer(c_int32_t) :: count
    character(kind=c_char), allocatable, target :: name(:)
    allocate (name, source=method_text(method))
    if (c_tf_output_count(self%handle, c_loc(name), count) /= TF_OK) count = -1
  end function

  function model_parameter_count(self) result(count)
    class(tf_model), intent(in) :: self
    integer(c_int32_t) :: count
    if (c_tf_parameter_count(self%handle, count) /= TF_OK) count = -1
  end function

  ! Indices start at 1.
  subroutine model_input(self, index, variable, status, method)
    class(tf_model), intent(in) :: self
    integer, intent(in) :: index
    type(tf_variable), intent(out) :: variable
    integer(c_int32_t), intent(out) :: status
    character(*), intent(in), optional :: method
    character(kind=c_char), allocatable, target :: name(:)
    type(c_variable) :: described
    allocate (name, source=method_text(method))
    status = c_tf_input(self%handle, c_loc(name), int(index - 1, c_int32_t), described)
    if (status == TF_OK) variable = f_variable(described)
  end subroutine

  subroutine model_output(self, index, variable, status, method)
    class(tf_model), intent(in) :: self
    integer, intent(in) :: index
    type(tf_variable), intent(out) :: variable
    integer(c_int32_t), intent(out) :: status
    character(*), intent(in), optional :: method
    character(kind=c_char), allocatable, target :: name(:)
    type(c_variable) :: described
    allocate (name, source=method_text(method))
    status = c_tf_output(self%handle, c_loc(name), int(index - 1, c_int32_t), described)
    if (status == TF_OK) variable = f_variable(described)
  end subroutine

  subroutine model_parameter(self, index, variable, status)
    class(tf_model), intent(in) :: self
    integer, intent(in) :: index
    type(tf_variable), intent(out) :: variable
    integer(c_int32_t), intent(out) :: status
    type(c_variable) :: described
    status = c_tf_parameter(self%handle, int(index - 1, c_int32_t), described)
    if (status == TF_OK) variable = f_variable(described)
  end subroutine

  ! Inputs and outputs in the contract's order. Outputs may be the memory of inputs.
  subroutine model_call(self, inputs, outputs, status, method)
    class(tf_model), intent(in) :: self
    type(tf_array), intent(in) :: inputs(:), outputs(:)
    integer(c_int32_t), intent(out) :: status
    character(*), intent(in), optional :: method
    character(kind=c_char), allocatable, target :: name(:)
    integer(c_int64_t), target :: sizes(MAX_RANK, 2, size(inputs) + size(outputs))
    type(c_tensor) :: c_inputs(size(inputs)), c_outputs(size(outputs))
    integer :: which, i, k

    which = find_method(self, method)
    do i = 1, size(inputs)
      c_inputs(i) = c_described(inputs(i), own_rank(self, inputs(i), which, i, .true.), sizes(:, :, i))
    end do
    do i = 1, size(outputs)
      k = size(inputs) + i
      c_outputs(i) = c_described(outputs(i), own_rank(self, outputs(i), which, i, .false.), sizes(:, :, k))
    end do
    allocate (name, source=method_text(method))
    status = c_tf_call(self%handle, c_loc(name), size(inputs, kind=c_int32_t), c_inputs, &
                       size(outputs, kind=c_int32_t), c_outputs)
  end subroutine

  ! By name, in any order: all inputs, and those outputs that are wanted. Blanks at the end of a name do not count.
  subroutine model_call_named(self, input_names, inputs, output_names, outputs, status, method)
    class(tf_model), intent(in) :: self
    character(*), intent(in) :: input_names(:), output_names(:)
    type(tf_array), intent(in) :: inputs(:), outputs(:)
    integer(c_int32_t), intent(out) :: status
    character(*), intent(in), optional :: method
    character(kind=c_char), allocatable, target :: name(:)
    character(kind=c_char), target :: names_in(len(input_names) + 1, size(inputs))
    character(kind=c_char), target :: names_out(len(output_names) + 1, size(outputs))
    type(c_ptr) :: at_in(size(inputs)), at_out(size(outputs))
    integer(c_int64_t), target :: sizes(MAX_RANK, 2, size(inputs) + size(outputs))
    type(c_tensor) :: c_inputs(size(inputs)), c_outputs(size(outputs))
    integer :: which, place, i, k

    which = find_method(self, method)
    ! An array without a name gets none, which the library refuses by its position.
    at_in = c_null_ptr
    at_out = c_null_ptr
    do i = 1, size(inputs)
      place = 0
      if (i <= size(input_names)) then
        if (which > 0) place = place_of(self%methods(which)%inputs, input_names(i))
        names_in(:, i) = padded(input_names(i), size(names_in, 1))
        at_in(i) = c_loc(names_in(1, i))
      end if
      c_inputs(i) = c_described(inputs(i), own_rank(self, inputs(i), which, place, .true.), sizes(:, :, i))
    end do
    do i = 1, size(outputs)
      place = 0
      if (i <= size(output_names)) then
        if (which > 0) place = place_of(self%methods(which)%outputs, output_names(i))
        names_out(:, i) = padded(output_names(i), size(names_out, 1))
        at_out(i) = c_loc(names_out(1, i))
      end if
      k = size(inputs) + i
      c_outputs(i) = c_described(outputs(i), own_rank(self, outputs(i), which, place, .false.), sizes(:, :, k))
    end do
    allocate (name, source=method_text(method))
    status = c_tf_call_named(self%handle, c_loc(name), size(inputs, kind=c_int32_t), at_in, c_inputs, &
                             size(outputs, kind=c_int32_t), at_out, c_outputs)
  end subroutine

  ! Needs settable_parameters=.true. at load.
  subroutine model_set_parameter(self, name, value, status)
    class(tf_model), intent(in) :: self
    character(*), intent(in) :: name
    type(tf_array), intent(in) :: value
    integer(c_int32_t), intent(out) :: status
    character(kind=c_char), allocatable, target :: c_name(:)
    integer(c_int64_t), target :: sizes(MAX_RANK, 2)
    allocate (c_name, source=c_text(name))
    status = c_tf_set_parameter(self%handle, c_loc(c_name), c_described(value, value%rank, sizes))
  end subroutine

  subroutine model_get_parameter(self, name, value, status)
    class(tf_model), intent(in) :: self
    character(*), intent(in) :: name
    type(tf_array), intent(in) :: value
    integer(c_int32_t), intent(out) :: status
    character(kind=c_char), allocatable, target :: c_name(:)
    integer(c_int64_t), target :: sizes(MAX_RANK, 2)
    allocate (c_name, source=c_text(name))
    status = c_tf_get_parameter(self%handle, c_loc(c_name), c_described(value, value%rank, sizes))
  end subroutine

  ! Replays the stored cases; TF_ERROR_MISMATCH where one differs.
  subroutine model_run_cases(self, compared, failed, status)
    class(tf_model), intent(in) :: self
    integer(c_int32_t), intent(out) :: compared, failed, status
    compared = 0
    failed = 0
    status = c_tf_run_cases(self%handle, compared, failed)
  end subroutine

  function tf_status_name(status) result(text)
    integer(c_int32_t), intent(in) :: status
    character(:), allocatable :: text
    text = f_text(c_tf_status_name(status))
  end function

  function tf_library_version() result(text)
    character(:), allocatable :: text
    text = f_text(c_tf_version())
  end function

  ! 0 where there is none: the library says so.
  integer function find_method(self, method) result(which)
    class(tf_model), intent(in) :: self
    character(*), intent(in), optional :: method
    character(:), allocatable :: wanted
    wanted = "forward"
    if (present(method)) wanted = trim(method)
    which = 0
    if (.not. allocated(self%methods)) return
    do which = size(self%methods), 1, -1
      if (self%methods(which)%name == wanted) return
    end do
  end function

  ! How many of an array's dimensions are the variable's own; the rest are its batch. Where the library will refuse
  ! the call, none.
  integer function own_rank(self, array, which, place, is_input) result(own)
    class(tf_model), intent(in) :: self
    type(tf_array), intent(in) :: array
    integer, intent(in) :: which, place
    logical, intent(in) :: is_input
    own = 0
    if (which < 1 .or. place < 1) return
    if (self%batch_ndim == 0) then
      own = array%rank
    else if (is_input) then
      if (place <= size(self%methods(which)%inputs)) own = size(self%methods(which)%inputs(place)%shape)
    else
      if (place <= size(self%methods(which)%outputs)) own = size(self%methods(which)%outputs(place)%shape)
    end if
  end function

  ! A Jacobian block is "output/input".
  integer function place_of(variables, name) result(place)
    type(tf_variable), intent(in) :: variables(:)
    character(*), intent(in) :: name
    character(:), allocatable :: label
    do place = size(variables), 1, -1
      label = variables(place)%name
      if (len(variables(place)%by) > 0) label = label // "/" // variables(place)%by
      if (label == trim(name)) return
    end do
  end function

  function f_variable(described) result(variable)
    type(c_variable), intent(in) :: described
    type(tf_variable) :: variable
    integer(c_int64_t), pointer :: sizes(:)
    variable%name = f_text(described%name)
    variable%by = f_text(described%by)
    variable%dtype = described%dtype
    allocate (variable%shape(described%rank))
    if (described%rank > 0) then
      call c_f_pointer(described%shape, sizes, [described%rank])
      variable%shape = sizes
    end if
  end function

  function method_text(method) result(chars)
    character(*), intent(in), optional :: method
    character(kind=c_char), allocatable :: chars(:)
    if (present(method)) then
      allocate (chars, source=c_text(method))
    else
      allocate (chars, source=c_text("forward"))
    end if
  end function

end module torchferry
